#include "csrc/engine/batch_queue.h"

#include <iterator>

namespace hvl::engine {

bool BatchQueue::Push(Work&& work) {
  const MutexLock lock(mutex_);
  if (!closed_.ok()) return false;
  ready_.push_back(std::move(work));
  if (failure_.ok()) ready_count_.fetch_add(1);
  return true;
}

std::uint64_t BatchQueue::TakeFinished() {
  const std::uint64_t finished = finished_sequence_.load();
  taken_sequence_.store(finished);
  return finished;
}

Status BatchQueue::TakeFailure() {
  if (!has_failure_.load() || !has_failure_.exchange(false)) return Status::Ok();
  const MutexLock lock(mutex_);
  return failure_;
}

bool BatchQueue::has_news() const {
  return finished_sequence_.load() != taken_sequence_.load() || has_failure_.load();
}

void BatchQueue::Withdraw(std::uint64_t sequence, std::uint64_t first_gate,
                          std::uint64_t last_gate) {
  const MutexLock lock(mutex_);
  first_withdrawn_gate_ = first_gate;
  last_withdrawn_gate_ = last_gate;
  while (!ready_.empty() && ready_.back().plan.sequence > sequence) {
    ready_.pop_back();
    if (failure_.ok()) ready_count_.fetch_sub(1);
  }
  if (failed_work_ && failed_work_->plan.sequence > sequence) failed_work_.reset();
}

std::vector<Work> BatchQueue::Close(const Status& cause) {
  std::vector<Work> left;
  const MutexLock lock(mutex_);
  if (!closed_.ok()) return left;
  closed_ = cause;
  if (failed_work_) left.push_back(*std::move(failed_work_));
  failed_work_.reset();
  left.insert(left.end(), std::move_iterator(ready_.begin()), std::move_iterator(ready_.end()));
  ready_.clear();
  ready_count_.store(0);
  return left;
}

std::optional<Work> BatchQueue::Pop(std::size_t max_bytes) {
  const MutexLock lock(mutex_);
  if (!failure_.ok() || ready_.empty() || ready_.front().bytes > max_bytes) return std::nullopt;
  std::optional<Work> work = std::move(ready_.front());
  ready_.pop_front();
  ready_count_.fetch_sub(1);
  return work;
}

std::optional<std::pair<Work, Status>> BatchQueue::PutBack(Work work) {
  const MutexLock lock(mutex_);
  // All ranks pass the gates before the first one that was withdrawn, also after the thaw.
  const std::uint64_t gate = GateNumber(work.plan.gate->plan, work.plan.gate->count);
  if (gate >= first_withdrawn_gate_ && gate <= last_withdrawn_gate_) return std::nullopt;
  if (!closed_.ok()) return std::pair(std::move(work), closed_);
  ready_.push_front(std::move(work));
  if (failure_.ok()) ready_count_.fetch_add(1);
  return std::nullopt;
}

std::optional<std::pair<Work, Status>> BatchQueue::Failed(Work work, const Status& error) {
  const MutexLock lock(mutex_);
  if (!closed_.ok()) return std::pair(std::move(work), closed_);
  failure_ = error;
  failed_work_ = std::move(work);
  ready_count_.store(0);
  has_failure_.store(true);
  return std::nullopt;
}

}  // namespace hvl::engine
