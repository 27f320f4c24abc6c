#include "csrc/engine/handle_state.h"

#include <algorithm>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/engine/futex.h"
#include "csrc/engine/validate.h"

namespace hvl {
namespace {

int PartCount(const Operation& operation) {
  return std::max(1, static_cast<int>(operation.tensors.size()));
}

}  // namespace

Handle::State::State(Operation&& arguments, std::shared_ptr<engine::Core> core)
    : operation(own_),
      own_(std::move(arguments)),
      core_(std::move(core)),
      part_count_(PartCount(own_)),
      open_parts_(part_count_) {
  Begin();
}

Handle::State::State(std::shared_ptr<const Operation> arguments, std::shared_ptr<engine::Core> core)
    : operation(*arguments),
      shared_(std::move(arguments)),
      core_(std::move(core)),
      part_count_(PartCount(operation)),
      open_parts_(part_count_) {
  Begin();
}

void Handle::State::Begin() {
  undispatched_parts = part_count_;
  const bool has_result =
      engine::AllocatesResult(operation.kind) || operation.kind == OpKind::kJoin;
  if (has_result) gathered.resize(static_cast<std::size_t>(part_count_));
}

void Handle::State::SetName(std::string name) {
  HVL_CHECK(shared_ == nullptr, "a shared operation has a name");
  own_.name = std::move(name);
}

bool Handle::State::EndParts(int count, const Status& status) {
  if (!status.ok()) {
    const MutexLock lock(mutex_);
    if (outcome_.ok()) outcome_ = status;
  }
  const int before = open_parts_.fetch_sub(count);
  HVL_CHECK(count > 0 && before >= count, "a part of '" + operation.name + "' ended twice");
  return before == count;
}

void Handle::State::Publish() {
  if (phase_.exchange(kDone, std::memory_order_acq_rel) == kPendingWithSleepers) {
    engine::FutexWakeAll(phase_);
  }
}

bool Handle::State::SleepUntilDone(TimePoint deadline) {
  std::uint32_t phase = kPending;
  phase_.compare_exchange_strong(phase, kPendingWithSleepers, std::memory_order_acq_rel);
  while (!done()) {
    if (SteadyClock().Now() >= deadline) return false;
    engine::FutexWait(phase_, kPendingWithSleepers, deadline);
  }
  return true;
}

}  // namespace hvl
