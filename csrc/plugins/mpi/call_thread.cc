#include "csrc/plugins/mpi/call_thread.h"

#include <pthread.h>

#include <csignal>
#include <optional>
#include <thread>
#include <utility>

#include "csrc/base/str.h"

namespace hvl::mpi {
namespace {

struct Outcome {
  Mutex mutex;
  CondVar changed;
  std::optional<Status> status HVL_GUARDED_BY(mutex);
};

std::function<void()> Reporting(std::shared_ptr<Outcome> outcome, std::function<Status()> call) {
  return [outcome = std::move(outcome), call = std::move(call)] {
    const Status status = call();
    const MutexLock lock(outcome->mutex);
    outcome->status = status;
    outcome->changed.notify_all();
  };
}

}  // namespace

// Signals are for the program's threads.
CallThread::CallThread() : shared_(std::make_shared<Shared>()) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread([shared = shared_] { Work(*shared); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread.native_handle(), "hvl-mpi");
  thread.detach();
}

void CallThread::Work(Shared& shared) {
  for (;;) {
    std::function<void()> call;
    {
      const MutexLock lock(shared.mutex);
      while (shared.calls.empty()) shared.changed.wait(shared.mutex);
      call = std::move(shared.calls.front());
      shared.calls.pop_front();
    }
    call();
  }
}

void CallThread::Post(std::function<void()> call) {
  const MutexLock lock(shared_->mutex);
  shared_->calls.push_back(std::move(call));
  shared_->changed.notify_one();
}

Status CallThread::Run(std::function<Status()> call) {
  const auto outcome = std::make_shared<Outcome>();
  Post(Reporting(outcome, std::move(call)));
  const MutexLock lock(outcome->mutex);
  while (!outcome->status) outcome->changed.wait(outcome->mutex);
  return *outcome->status;
}

Status CallThread::Run(std::function<Status()> call, Duration limit,
                       const std::function<Status()>& given_up) {
  constexpr auto kLook = std::chrono::milliseconds(5);
  const TimePoint end = SteadyClock().Now() + limit;
  const auto outcome = std::make_shared<Outcome>();
  Post(Reporting(outcome, std::move(call)));
  for (;;) {
    {
      const MutexLock lock(outcome->mutex);
      if (!outcome->status) outcome->changed.wait_for(outcome->mutex, kLook);
      if (outcome->status) return *outcome->status;
    }
    HVL_RETURN_IF_ERROR(given_up());
    if (SteadyClock().Now() >= end) {
      return {StatusCode::kTimeout, "MPI waits for other ranks for too long"};
    }
  }
}

}  // namespace hvl::mpi
