// A thread for MPI calls that may block for ever, and for those that only one thread may make.
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "csrc/base/clock.h"
#include "csrc/base/mutex.h"
#include "horovodlite/status.h"

namespace hvl::mpi {

/// Runs what it is given, one after the other, on one thread. That thread can be left alone with a
/// call that does not come back; nothing runs after such a call.
class CallThread {
 public:
  CallThread();
  ~CallThread() = default;
  CallThread(const CallThread&) = delete;
  CallThread& operator=(const CallThread&) = delete;

  /// Waits for `call` and returns its result; Timeout after `limit`, or whatever `given_up` says as
  /// soon as it is not OK, which is asked a few hundred times a second. Then the call may still be
  /// running or run later: what it refers to must stay.
  Status Run(std::function<Status()> call, Duration limit, const std::function<Status()>& given_up);
  /// The same without limit, for calls that always come back; they may refer to the caller's stack.
  Status Run(std::function<Status()> call);
  /// Does not wait.
  void Post(std::function<void()> call);

 private:
  struct Shared {
    Mutex mutex;
    CondVar changed;
    std::deque<std::function<void()>> calls HVL_GUARDED_BY(mutex);
  };
  static void Work(Shared& shared);

  const std::shared_ptr<Shared> shared_;  // with the thread, which is never joined
};

}  // namespace hvl::mpi
