#include <algorithm>
#include <memory>
#include <optional>

#include "csrc/base/mutex.h"
#include "csrc/net/round.h"
#include "csrc/net/store.h"

namespace hvl::net {

struct MemoryStore::State {
  // A round and how it ended. Its waiters keep it while the store is already in the next round.
  struct Meeting {
    Round round;
    std::optional<Status> outcome;
    Rendezvous result;  // when the outcome is OK
  };

  Mutex mutex;
  CondVar changed;
  std::uint64_t generation HVL_GUARDED_BY(mutex) = 0;
  // Shared by the store and the threads that wait in it.
  std::shared_ptr<Meeting> meeting HVL_GUARDED_BY(mutex) = std::make_shared<Meeting>();

  void End(Status outcome) HVL_REQUIRES(mutex) {
    meeting->outcome = std::move(outcome);
    meeting = std::make_shared<Meeting>();
    changed.notify_all();
  }
};

MemoryStore::MemoryStore() : state_(std::make_unique<State>()) {}
MemoryStore::~MemoryStore() = default;

Result<Rendezvous> MemoryStore::Join(int rank, int size, const std::string& blob,
                                     Duration timeout) {
  HVL_RETURN_IF_ERROR(CheckJoin(rank, size, blob.size()));
  // Capped, so that "forever" does not overflow.
  const TimePoint deadline =
      SteadyClock().Now() + std::min<Duration>(timeout, std::chrono::hours(24 * 365));
  const MutexLock lock(state_->mutex);
  const std::shared_ptr<State::Meeting> meeting = state_->meeting;
  if (const Status entered = meeting->round.Enter(rank, size, blob); !entered.ok()) {
    state_->End(entered);
    return entered;
  }
  if (meeting->round.complete()) {
    meeting->result = {++state_->generation, meeting->round.TakeBlobs()};
    state_->End(Status::Ok());
  }
  while (!meeting->outcome.has_value()) {
    if (state_->changed.wait_until(state_->mutex, deadline) == std::cv_status::timeout &&
        !meeting->outcome.has_value()) {
      const Status timed_out = JoinTimeout(rank, size, meeting->round.MissingRanks());
      meeting->round.Leave(rank);
      return timed_out;
    }
  }
  if (!meeting->outcome->ok()) return *meeting->outcome;
  return meeting->result;
}

}  // namespace hvl::net
