// The public Handle: a view of Handle::State.
#include "csrc/base/check.h"
#include "csrc/engine/core.h"
#include "csrc/engine/handle_state.h"
#include "horovodlite/session.h"

namespace hvl {

// In a forked child an operation never gets done, but whoever asks must not wait for ever: it
// counts as ended, and Wait says why.
bool Handle::finished() const {
  HVL_CHECK(valid(), "Handle::done or finished on an empty handle");
  return state_->done() || state_->core().in_child();
}

bool Handle::done() const {
  if (finished()) return true;
  state_->core().NoteAsked();
  return false;
}

Status Handle::Wait() {
  HVL_CHECK(valid(), "Handle::Wait on an empty handle");
  return state_->core().Wait(*state_, Interrupted());
}

Status Handle::Wait(const Interrupted& interrupted) {
  HVL_CHECK(valid(), "Handle::Wait on an empty handle");
  return state_->core().Wait(*state_, interrupted);
}

Status Handle::WaitFor(std::chrono::nanoseconds timeout) {
  HVL_CHECK(valid(), "Handle::WaitFor on an empty handle");
  const TimePoint now = SteadyClock().Now();
  // A time that no clock reaches is no deadline.
  if (timeout >= TimePoint::max() - now) return Wait();
  return state_->core().WaitUntil(*state_, now + timeout);
}

const std::vector<GatheredTensor>& Handle::gathered() const {
  HVL_CHECK(valid() && state_->done() && state_->outcome().ok(),
            "Handle::gathered needs a finished operation without error");
  return state_->gathered;
}

}  // namespace hvl
