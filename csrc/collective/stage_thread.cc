#include "csrc/collective/stage_thread.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>

#include "csrc/base/str.h"

namespace hvl::collective {

// Signals are for the program's own threads.
Result<std::unique_ptr<StageThread>> StageThread::Start(Step step) {
  std::unique_ptr<StageThread> stage(new StageThread(std::move(step)));
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    stage->thread_ = std::thread([raw = stage.get()] { raw->Run(); });
    pthread_setname_np(stage->thread_.native_handle(), "hvl-stage");
  } catch (const std::system_error& error) {
    status = Status(StatusCode::kResourceExhausted,
                    Format("the system has no thread for an operation: {}", error.what()));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!status.ok()) return status;
  return stage;
}

StageThread::~StageThread() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void StageThread::Release() {
  const MutexLock lock(mutex_);
  ++released_;
  changed_.notify_all();
}

Status StageThread::Await(std::size_t number) {
  MutexLock lock(mutex_);
  while (done_ <= number && failure_.ok()) changed_.wait(mutex_);
  return failure_;
}

void StageThread::Run() {
  MutexLock lock(mutex_);
  while (failure_.ok()) {
    while (released_ == done_ && !ends_) changed_.wait(mutex_);
    if (ends_) return;
    const std::size_t number = done_;
    mutex_.unlock();
    Status status = step_(number);
    mutex_.lock();
    failure_ = std::move(status);
    ++done_;
    changed_.notify_all();
  }
}

}  // namespace hvl::collective
