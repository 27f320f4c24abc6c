// The session as the bindings share it.
#pragma once

#include <pybind11/pybind11.h>
#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "horovodlite/session.h"
#include "python/bind_handle.h"
#include "python/bind_memory.h"
#include "python/keepalive.h"

namespace hvl::python {

/// Owns a Session and what its operations keep alive. Methods need the GIL.
class PySession {
 public:
  static std::shared_ptr<PySession> Create(std::vector<int> ranks);

  PySession(std::unique_ptr<Session> session, bool checks_sites, bool debug);
  ~PySession();
  PySession(const PySession&) = delete;
  PySession& operator=(const PySession&) = delete;

  const World& world() const { return session_->world(); }
  std::string_view data_plane() const { return session_->data_plane(); }
  bool checks_sites() const { return checks_sites_; }
  bool debug() const { return debug_; }

  ProcessSetId AddProcessSet(std::vector<int> ranks);
  void RemoveProcessSet(ProcessSetId id);
  std::vector<int> ProcessSetRanks(ProcessSetId id) const;

  /// Starts an operation. Without `wake` it starts with the next one that is submitted or waited
  /// for. Raises what the core refuses.
  std::shared_ptr<Kept> Start(Operation&& operation, pybind11::object keep, bool wake);
  std::shared_ptr<Kept> Start(std::shared_ptr<const Operation> operation, pybind11::object keep,
                              bool wake);
  PyHandle Submit(Operation operation, pybind11::object keep);
  pybind11::list Run(Operation operation, pybind11::object keep);

  Memory Allocate(std::size_t bytes);
  void Shutdown();
  bool Healthy() const { return session_->health().ok(); }
  pybind11::dict Counters() const;
  void StartTimeline(const std::string& path, bool mark_cycles);
  void StopTimeline();

 private:
  std::unique_ptr<Session> session_;
  KeepAlive keep_alive_;
  const pid_t owner_process_;
  const bool checks_sites_, debug_;
};

}  // namespace hvl::python
