#include "python/py_session.h"

#include <unistd.h>

#include <utility>

#include "csrc/config/config.h"
#include "python/bind_handle.h"
#include "python/errors.h"

namespace hvl::python {

namespace py = pybind11;

namespace {

/// `call(interrupted)` without the GIL; a signal handler that raises ends the wait.
template <typename Call>
auto Interruptibly(const Call& call) {
  const Interrupted interrupted = InterruptedByHandler();
  auto result = [&] {
    const py::gil_scoped_release unlocked;
    return call(interrupted);
  }();
  ThrowIfInterrupted();
  return result;
}

}  // namespace

std::shared_ptr<PySession> PySession::Create(std::vector<int> ranks) {
  const config::Config config =
      Unwrap(config::Config::Parse(config::ProcessEnv(), /*warnings=*/nullptr));
  auto session = Interruptibly([&](const Interrupted& interrupted) {
    return Session::Create(std::move(ranks), interrupted);
  });
  const bool checks_sites = config.unnamed_sites != config::UnnamedSites::kOff;
  return std::make_shared<PySession>(Unwrap(std::move(session)), checks_sites, config.debug);
}

PySession::PySession(std::unique_ptr<Session> session, bool checks_sites, bool debug)
    : session_(std::move(session)),
      owner_process_(::getpid()),
      checks_sites_(checks_sites),
      debug_(debug) {}

PySession::~PySession() {
  // A forked child has this object but none of its threads: there is nothing that it could stop.
  if (::getpid() != owner_process_) {
    [[maybe_unused]] const Session* const leaked = session_.release();
    return;
  }
  const py::gil_scoped_release unlocked;
  session_.reset();
}

ProcessSetId PySession::AddProcessSet(std::vector<int> ranks) {
  return Unwrap(Interruptibly([&](const Interrupted& interrupted) {
    return session_->AddProcessSet(std::move(ranks), interrupted);
  }));
}

void PySession::RemoveProcessSet(ProcessSetId id) {
  ThrowIfError(Interruptibly(
      [&](const Interrupted& interrupted) { return session_->RemoveProcessSet(id, interrupted); }));
}

std::vector<int> PySession::ProcessSetRanks(ProcessSetId id) const {
  return Unwrap(session_->ProcessSetRanks(id));
}

std::shared_ptr<Kept> PySession::Start(Operation&& operation, py::object keep, bool wake) {
  // Submit never waits for a peer, and giving up the GIL here could cost a thread switch.
  Handle handle = Unwrap(session_->Submit(std::move(operation), /*caller_waits=*/!wake));
  return keep_alive_.Add(std::move(handle), std::move(keep));
}

std::shared_ptr<Kept> PySession::Start(std::shared_ptr<const Operation> operation, py::object keep,
                                       bool wake) {
  Handle handle = Unwrap(session_->Submit(std::move(operation), /*caller_waits=*/!wake));
  return keep_alive_.Add(std::move(handle), std::move(keep));
}

PyHandle PySession::Submit(Operation operation, py::object keep) {
  return PyHandle(Start(std::move(operation), std::move(keep), /*wake=*/true));
}

py::list PySession::Run(Operation operation, py::object keep) {
  return PyHandle(Start(std::move(operation), std::move(keep), /*wake=*/false)).WaitGathered();
}

Memory PySession::Allocate(std::size_t bytes) {
  Result<SharedBuffer> buffer = [this, bytes] {
    const py::gil_scoped_release unlocked;
    return session_->Allocate(bytes);
  }();
  SharedBuffer block = Unwrap(std::move(buffer));
  return Memory{std::move(block.owner), block.data, block.bytes};
}

void PySession::Shutdown() {
  {
    const py::gil_scoped_release unlocked;
    session_->Shutdown();
  }
  keep_alive_.ReleaseFinished();
}

py::dict PySession::Counters() const {
  const SessionCounters counters = session_->counters();
  py::dict dict;
  dict["operations_submitted"] = counters.operations_submitted;
  dict["operations_completed"] = counters.operations_completed;
  dict["batches_dispatched"] = counters.batches_dispatched;
  dict["bytes_reduced"] = counters.bytes_reduced;
  dict["control_frames_sent"] = counters.control_frames_sent;
  dict["control_frames_received"] = counters.control_frames_received;
  dict["control_bytes_sent"] = counters.control_bytes_sent;
  dict["plan_freezes"] = counters.plan_freezes;
  dict["plan_thaws"] = counters.plan_thaws;
  dict["objects_kept_alive"] = keep_alive_.size();
  return dict;
}

void PySession::StartTimeline(const std::string& path, bool mark_cycles) {
  ThrowIfError([this, &path, mark_cycles] {
    const py::gil_scoped_release unlocked;
    return session_->StartTimeline(path, mark_cycles);
  }());
}

void PySession::StopTimeline() {
  ThrowIfError([this] {
    const py::gil_scoped_release unlocked;
    return session_->StopTimeline();
  }());
}

}  // namespace hvl::python
