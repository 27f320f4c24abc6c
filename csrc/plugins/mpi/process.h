// What there is once per process, as MPI itself: its start and end, and who may call it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/mutex.h"
#include "csrc/plugin/mpi.h"
#include "csrc/plugins/mpi/call_thread.h"
#include "csrc/plugins/mpi/mpi_api.h"
#include "horovodlite/status.h"

namespace hvl::mpi {

/// The one object of the plug-in; lives as long as the process.
class Process final : public plugin::Mpi {
 public:
  Process();
  Result<std::unique_ptr<collective::Backend>> CreateBackend(plugin::MpiOptions options,
                                                             const Logger& logger) override;
  Result<std::vector<std::string>> Exchange(const std::string& own,
                                            const plugin::MpiOptions& options,
                                            const Interrupted& interrupted) override;
  bool threads_supported() const override { return level_.load() == MPI_THREAD_MULTIPLE; }

  /// Runs a piece of work that calls MPI and always comes back: here, or on the one thread that may
  /// call MPI. Not from inside such work.
  Status Perform(const std::function<Status()>& work);
  /// A communicator of some ranks of `parent`; all of them call it, nobody else. Ends when
  /// `given_up` is not OK any more. Not from inside Perform.
  Result<MPI_Comm> MakeCommunicator(MPI_Comm parent, std::vector<int> ranks, Duration limit,
                                    const std::function<Status()>& given_up);
  /// Does not wait.
  void FreeCommunicator(MPI_Comm communicator);

  /// Says that MPI still works on something that nobody waits for: no session can use it again.
  void Break(const Status& cause);
  Status broken() const;

 private:
  Status Usable() const;
  Status Initialise(const plugin::MpiOptions& options);
  Status CheckLevel() const;
  void FinaliseAtExit(int exit_status);

  CallThread thread_;
  std::atomic<int> level_{MPI_THREAD_SINGLE};
  bool initialised_ = false;  // set before any other thread is there that asks
  bool ours_ = false;         // the program had not initialised it
  const pid_t pid_;           // that has the thread: not a child made by fork
  mutable Mutex mutex_;
  Status broken_ HVL_GUARDED_BY(mutex_);
};

}  // namespace hvl::mpi
