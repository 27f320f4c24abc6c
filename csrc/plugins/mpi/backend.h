// The data plane over MPI's nonblocking collectives.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "csrc/base/clock.h"
#include "csrc/collective/backend.h"
#include "csrc/plugin/mpi.h"
#include "csrc/plugins/mpi/mpi_api.h"
#include "csrc/plugins/mpi/stop.h"
#include "horovodlite/status.h"

namespace hvl::mpi {

class Process;

/// What the backend of a session and its parts share. One thread at a time, apart from `stop`.
class Means {
 public:
  using Start = std::function<int(MPI_Request*)>;

  Means(Process& process, const plugin::MpiOptions& options)
      : process_(process), options_(options) {}
  ~Means();
  Means(const Means&) = delete;
  Means& operator=(const Means&) = delete;

  /// Starts a nonblocking operation and waits until it is done. When the session is stopped or the
  /// deadline has passed before that, the operation is left alone, and MPI is broken: it may go on
  /// reading and writing the memory that it was given. From inside Process::Perform.
  Status Complete(std::string_view name, const Start& start,
                  std::optional<TimePoint> deadline = {});

  /// Memory that stays, also while MPI still works on it; there are two, which grow when needed.
  std::byte* Staging(int which, std::size_t bytes);

  Process& process() const { return process_; }
  const plugin::MpiOptions& options() const { return options_; }
  Stop& stop() { return stop_; }

 private:
  struct Buffer {
    std::unique_ptr<std::byte[]> memory;
    std::size_t bytes = 0;
  };

  Status LeaveAlone(const Status& cause);
  Status WhoseFault(const Status& error);

  Process& process_;
  const plugin::MpiOptions options_;
  Stop stop_;
  Buffer staging_[2];
};

/// `communicator` has the ranks of the session in their order, and belongs to the backend from now.
std::unique_ptr<collective::Backend> MakeBackend(std::shared_ptr<Means> means,
                                                 MPI_Comm communicator);

}  // namespace hvl::mpi
