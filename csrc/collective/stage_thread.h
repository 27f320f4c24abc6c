// A second thread for the length of one operation, which does one stage of it step by step while
// the caller does the others.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <thread>

#include "csrc/base/mutex.h"
#include "horovodlite/status.h"

namespace hvl::collective {

class StageThread {
 public:
  using Step = std::function<Status(std::size_t number)>;

  /// Calls step(0), step(1), ... on a thread of its own, each after a Release, until one fails.
  /// ResourceExhausted when the system has no thread.
  static Result<std::unique_ptr<StageThread>> Start(Step step);
  /// Waits for a step that runs; begins no other one.
  ~StageThread();
  StageThread(const StageThread&) = delete;
  StageThread& operator=(const StageThread&) = delete;

  // Called by the thread that has started it.

  /// One step more may begin. What the caller has written before, the step sees.
  void Release();
  /// Blocks until step `number`, which was released, has ended; what it has written, the caller
  /// sees. Returns the first failure of a step up to now.
  Status Await(std::size_t number);

 private:
  explicit StageThread(Step step) : step_(std::move(step)) {}
  void Run();

  const Step step_;
  Mutex mutex_;
  CondVar changed_;
  std::size_t released_ HVL_GUARDED_BY(mutex_) = 0;
  std::size_t done_ HVL_GUARDED_BY(mutex_) = 0;
  bool ends_ HVL_GUARDED_BY(mutex_) = false;
  Status failure_ HVL_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it uses everything above
};

}  // namespace hvl::collective
