#include "csrc/engine/core.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/errno_text.h"
#include "csrc/base/rank_text.h"
#include "csrc/base/str.h"
#include "csrc/engine/validate.h"

namespace hvl::engine {
namespace {

// How long the coordinator thread stays away from the links after somebody drove: long against the
// pause between two small operations of a loop, short against anything that a person notices. Each
// end of a park costs a driver some 25 us, so parks get longer while driving goes on.
constexpr Duration kParkTime = std::chrono::microseconds(200);
constexpr Duration kLongestPark = 8 * kParkTime;

// How long the coordinator thread leaves submissions in the queue when it has just taken some: a
// burst then wakes it once per nap, not once per operation, which costs more than the operation.
constexpr Duration kNap = std::chrono::microseconds(50);

// A thread that sleeps for so long looks after the negotiation once more. So the planner hears that
// the thread is blocked, without a wake of the coordinator thread for each wait.
constexpr Duration kTellAgain = std::chrono::seconds(1);

constexpr std::size_t kAnyBytes = std::numeric_limits<std::size_t>::max();

/// The largest batch that a waiting thread may run itself; nothing = it may run none. A batch takes
/// as long as the slowest peer, and cannot be left: so a thread with a deadline runs small ones
/// only, and none when its limit is so short that it must be meant literally.
std::optional<std::size_t> BatchLimit(std::optional<TimePoint> deadline) {
  constexpr std::size_t kSmallBytes = std::size_t{256} << 10;
  constexpr Duration kShortWait = std::chrono::milliseconds(10);
  if (!deadline) return kAnyBytes;
  if (*deadline - SteadyClock().Now() < kShortWait) return std::nullopt;
  return kSmallBytes;
}

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// A thread that takes no signals (they belong to the application's threads).
template <typename Body>
std::thread StartThread(const char* name, Body body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  try {
    thread = std::thread(std::move(body));
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(thread.native_handle(), name);
  return thread;
}

}  // namespace

Core::Core(Options options, std::unique_ptr<net::Mesh> mesh, std::unique_ptr<plan::Planner> planner,
           std::unique_ptr<collective::Backend> backend, Logger logger, const Clock& clock)
    : spin_(options.spin),
      keep_core_(options.keep_core),
      thread_processor_(options.thread_processor),
      logger_(std::move(logger)),
      clock_(clock),
      rank_(mesh->rank()),
      size_(mesh->size()),
      mesh_(std::move(mesh)),
      planner_(std::move(planner)),
      backend_(std::move(backend)),
      registry_(options.max_outstanding),
      sets_(rank_, size_),
      tracer_(clock, rank_ == 0),
      coordinator_rest_(*mesh_),
      coordinator_({.mesh = *mesh_,
                    .planner = *planner_,
                    .backend = *backend_,
                    .registry = registry_,
                    .queue = queue_,
                    .tracer = tracer_,
                    .counters = counters_,
                    .news = news_,
                    .clock = clock_,
                    .on_sample = std::move(options.on_sample),
                    .status = options.status},
                   logger_),
      executor_(*backend_, sets_, registry_, queue_, tracer_, counters_, options.status) {
  if (options.trace) tracer_.Set(std::move(options.trace), options.mark_cycles);
}

Core::~Core() = default;

void Core::KeepTo(std::thread* thread, int processor) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  const bool fits = processor < CPU_SETSIZE;
  if (fits) CPU_SET(static_cast<std::size_t>(processor), &mask);
  const int error =
      fits ? pthread_setaffinity_np(thread->native_handle(), sizeof mask, &mask) : EINVAL;
  if (error == 0) return;
  HVL_LOG(logger_, kWarning, "engine",
          "processor {} of HVL_THREAD_AFFINITY cannot be used ({}); threads stay where they are",
          processor, ErrnoText(error));
}

Status Core::StartThreads() {
  try {
    coordinator_thread_ = StartThread("hvl-coord", [this] { CoordinatorThread(); });
    executor_thread_ = StartThread("hvl-exec", [this] { ExecutorThread(); });
    if (thread_processor_) {
      KeepTo(&coordinator_thread_, *thread_processor_);
      KeepTo(&executor_thread_, *thread_processor_);
    }
  } catch (const std::system_error& error) {
    return Status(StatusCode::kResourceExhausted,
                  Format("the system gives no thread for the engine: {}; check `ulimit -u` and the "
                         "container's limit of processes",
                         error.what()));
  }
  return Status::Ok();
}

Status Core::ChildError() {
  return Status(StatusCode::kInvalidArgument,
                "horovodlite was initialised in the parent process, and a forked child cannot use "
                "that session; call init() after fork, or start the child with the 'spawn' method");
}

// --- Any thread -------------------------------------------------------------------------------

template <typename Arguments>
StatePtr Core::NewState(Arguments&& arguments) {
  return std::allocate_shared<Handle::State>(StateAllocator<Handle::State>(states_),
                                             std::forward<Arguments>(arguments),
                                             shared_from_this());
}

Result<Handle> Core::Submit(Operation&& operation, bool caller_waits) {
  if (in_child()) return ChildError();
  return Submit(NewState(std::move(operation)), caller_waits);
}

Result<Handle> Core::Submit(std::shared_ptr<const Operation> operation, bool caller_waits) {
  HVL_CHECK(operation != nullptr, "Session::Submit needs an operation");
  if (operation->name.empty()) return Submit(Operation(*operation), caller_waits);  // gets a name
  if (in_child()) return ChildError();
  return Submit(NewState(std::move(operation)), caller_waits);
}

Result<Handle> Core::Submit(StatePtr state, bool caller_waits) {
  state->submission.site = state->operation.site;
  const bool again = HasSoundMemory(state->operation, rank_) && registry_.AdmitAgain(state);
  if (!again) HVL_RETURN_IF_ERROR(Admit(state));
  if (!caller_waits && registry_.has_enough()) WakeCoordinatorForWork();
  return Handle(std::move(state));
}

Status Core::Admit(const StatePtr& state) {
  const Operation& operation = state->operation;
  HVL_ASSIGN_OR_RETURN(const ProcessSetPtr set, sets_.Find(operation.process_set));
  HVL_RETURN_IF_ERROR(CheckOperation(operation, *set, rank_));
  state->submission.first_dims = FirstDimensions(operation, *set);
  wire::Signature signature = SignatureOf(operation);
  HVL_RETURN_IF_ERROR(wire::CheckSignature(signature));
  return registry_.Admit(state, std::move(signature));
}

/// Who drives takes along what is queued, and a park is soon over.
void Core::WakeCoordinatorForWork() {
  if (drivers_.load() == 0 && coordinator_rest_.asleep()) coordinator_rest_.Wake();
}

void Core::NoteAsked() {
  if (registry_.has_queued()) WakeCoordinatorForWork();
}

// One change after the other on each rank, so ids and names are given in the order of the calls,
// which all ranks make alike. If they do not, different changes meet under one name: a mismatch. A
// change whose caller was interrupted is still negotiated: the same call, made again, takes it up,
// because the other ranks will make it once.
Result<ProcessSetId> Core::AddProcessSet(std::vector<int> ranks, const Interrupted& interrupted) {
  if (in_child()) return ChildError();
  std::sort(ranks.begin(), ranks.end());
  const bool repeats = std::adjacent_find(ranks.begin(), ranks.end()) != ranks.end();
  if (ranks.empty() || repeats || ranks.front() < 0 || ranks.back() >= size_) {
    return Status(StatusCode::kInvalidArgument,
                  Format("a process set has one or more different ranks from 0 to {}, and {} is "
                         "not that",
                         size_ - 1, RankList(ranks)));
  }
  const MutexLock lock(sets_mutex_);
  if (!set_change_ || set_change_->ranks != ranks) {
    HVL_RETURN_IF_ERROR(FinishEarlierSetChange(interrupted));
    if (const auto existing = sets_.FindRanks(ranks)) {
      return Status(StatusCode::kInvalidArgument,
                    Format("a process set of the ranks {} exists already: its id is {}",
                           RankList(ranks), *existing));
    }
    HVL_RETURN_IF_ERROR(SubmitSetChange(last_set_ + 1, std::move(ranks)));
  }
  const ProcessSetId id = set_change_->id;
  HVL_RETURN_IF_ERROR(FinishSetChange(interrupted));
  return id;
}

Status Core::RemoveProcessSet(ProcessSetId id, const Interrupted& interrupted) {
  if (in_child()) return ChildError();
  if (id == kWorldSet || id >= kFirstPairSet) {
    return Status(StatusCode::kInvalidArgument,
                  "the process sets of all ranks and of pairs cannot be removed");
  }
  const MutexLock lock(sets_mutex_);
  if (!set_change_ || !set_change_->ranks.empty() || set_change_->id != id) {
    HVL_RETURN_IF_ERROR(FinishEarlierSetChange(interrupted));
    HVL_RETURN_IF_ERROR(sets_.Find(id).status());
    HVL_RETURN_IF_ERROR(SubmitSetChange(id, {}));
  }
  return FinishSetChange(interrupted);
}

Status Core::SubmitSetChange(ProcessSetId id, std::vector<int> ranks) {
  Operation operation;
  operation.kind = OpKind::kProcessSet;
  operation.name = Format("process_set.change.{}", set_changes_++);
  StatePtr state = NewState(std::move(operation));
  wire::Signature change;
  change.kind = OpKind::kProcessSet;
  change.name = state->operation.name;
  change.process_set = id;
  change.ranks.assign(ranks.begin(), ranks.end());
  state->submission.transient = true;
  HVL_RETURN_IF_ERROR(registry_.Admit(state, std::move(change)));
  set_change_ = SetChange{id, std::move(ranks), std::move(state)};
  return Status::Ok();
}

Status Core::FinishSetChange(const Interrupted& interrupted) {
  HVL_CHECK(set_change_.has_value(), "there is a change to wait for");
  const Handle::State& state = *set_change_->state;
  const Status outcome = Wait(*set_change_->state, interrupted);
  if (!state.done()) return outcome;
  // A change that fails does so on all ranks, so all give this id to the next set.
  if (outcome.ok() && !set_change_->ranks.empty()) last_set_ = set_change_->id;
  set_change_.reset();
  return outcome;
}

Status Core::FinishEarlierSetChange(const Interrupted& interrupted) {
  if (!set_change_) return Status::Ok();
  const Status outcome = FinishSetChange(interrupted);
  return set_change_ ? outcome : Status::Ok();  // how it ended concerns nobody any more
}

Result<std::vector<int>> Core::ProcessSetRanks(ProcessSetId id) const {
  if (in_child()) return ChildError();
  HVL_ASSIGN_OR_RETURN(const ProcessSetPtr set, sets_.Find(id));
  return set->ranks;
}

void Core::Await(Handle::State& state, std::optional<TimePoint> deadline, bool blocks) {
  Drive(state, deadline);
  if (state.done()) return;
  sleepers_.fetch_add(1);
  // A frozen plan may wait for operations that this thread would submit only afterwards. One that
  // freezes from now on takes notice by itself.
  registry_.Await(state.shared_from_this(), blocks);
  const bool needed = coordinator_rest_.parked() || news_.frozen.load();
  if (drivers_.load() == 0 && needed) coordinator_rest_.Wake();
  state.SleepUntilDone(deadline ? *deadline : SteadyClock().Now() + kTellAgain);
  sleepers_.fetch_sub(1);
}

Status Core::Wait(Handle::State& state, const Interrupted& interrupted) {
  if (state.done()) return state.outcome();
  if (in_child()) return ChildError();
  while (!state.done()) {
    std::optional<TimePoint> deadline;
    if (interrupted) deadline = SteadyClock().Now() + kInterruptLatency;
    Await(state, deadline, /*blocks=*/true);
    if (state.done() || !interrupted || !interrupted()) continue;
    registry_.Await(state.shared_from_this(), /*blocks=*/false);
    NoteAsked();
    return {StatusCode::kAborted, Format("the wait for {} '{}' was interrupted; it goes on",
                                         OpKindName(state.operation.kind), state.operation.name)};
  }
  return state.outcome();
}

Status Core::WaitUntil(Handle::State& state, TimePoint deadline) {
  if (state.done()) return state.outcome();
  if (in_child()) return ChildError();
  Await(state, deadline, /*blocks=*/false);
  if (state.done()) return state.outcome();
  return Status(StatusCode::kTimeout,
                Format("{} '{}' has not finished in time; it goes on",
                       OpKindName(state.operation.kind), state.operation.name));
}

Result<SharedBuffer> Core::Allocate(std::size_t bytes) {
  if (in_child()) return ChildError();
  const MutexLock lock(backend_mutex_);
  if (backend_ == nullptr) return registry_.health();
  return backend_->Allocate(bytes);
}

Status Core::health() const { return in_child() ? ChildError() : registry_.health(); }

SessionCounters Core::counters() const {
  SessionCounters counters;
  counters.operations_submitted = registry_.submitted();
  counters.operations_completed = registry_.completed();
  counters.batches_dispatched = counters_.batches_dispatched.load(std::memory_order_relaxed);
  counters.bytes_reduced = counters_.bytes_reduced.load(std::memory_order_relaxed);
  counters.control_frames_sent = counters_.frames_sent.load(std::memory_order_relaxed);
  counters.control_frames_received = counters_.frames_received.load(std::memory_order_relaxed);
  counters.control_bytes_sent = counters_.bytes_sent.load(std::memory_order_relaxed);
  counters.plan_freezes = counters_.plan_freezes.load(std::memory_order_relaxed);
  counters.plan_thaws = counters_.plan_thaws.load(std::memory_order_relaxed);
  return counters;
}

void Core::SetTrace(std::shared_ptr<trace::Sink> sink, bool mark_cycles) {
  if (!in_child()) tracer_.Set(std::move(sink), mark_cycles);
}

// Each thread ends with its role in its hands and never gives it back. So when both have ended, no
// thread uses the parts, and none will.
void Core::Stop() {
  if (in_child()) return;
  const MutexLock lock(stop_mutex_);
  if (std::exchange(stopped_, true)) return;
  stopping_.store(true);
  coordinator_rest_.Wake();
  if (coordinator_thread_.joinable()) coordinator_thread_.join();
  executor_rest_.Wake();
  if (executor_thread_.joinable()) executor_thread_.join();
  coordinator_rest_.Close();
  executor_.Close();
  const MutexLock backend_lock(backend_mutex_);
  backend_.reset();
  planner_.reset();
  mesh_.reset();
}

// --- hvl-coord --------------------------------------------------------------------------------

void Core::CoordinatorThread() {
  CoordinateUntilStopped();
  while (!coordinator_role_.TryTake()) {
    // A driver has it for the length of one step and wakes this thread when it leaves.
    coordinator_rest_.Park(kParkTime, [this] { return !coordinator_role_.taken(); });
  }
  SayFarewell();
}

void Core::CoordinateUntilStopped() {
  std::uint64_t seen_drives = drives_.load();
  Duration park_time = kParkTime;
  while (!stopping_.load()) {
    const std::uint64_t drives = drives_.load();
    const bool driven = drives != std::exchange(seen_drives, drives) && !NeedsCoordinator();
    const bool is_driven = drivers_.load() > 0;
    if (driven || is_driven) {
      const bool undisturbed = coordinator_rest_.Park(is_driven ? park_time : kParkTime, [this] {
        return stopping_.load() || (drivers_.load() == 0 && NeedsCoordinator());
      });
      park_time = undisturbed ? std::min(2 * park_time, kLongestPark) : kParkTime;
      continue;
    }
    park_time = kParkTime;
    const bool takes_some = registry_.has_queued();
    TryCoordinate();
    WakeExecutorIfNeeded();
    const TimePoint now = clock_.Now();
    const TimePoint deadline = news_.deadline.load();
    // A frozen plan tells how many submissions are worth a wake.
    if (takes_some && !news_.frozen.load()) {
      coordinator_rest_.Nap(std::min(deadline, now + kNap), now, [this] {
        return stopping_.load() || registry_.has_awaited() || queue_.has_news();
      });
      continue;
    }
    coordinator_rest_.Sleep(deadline, now, [this, deadline] {
      return stopping_.load() || HasCoordinatorWork() || news_.deadline.load() < deadline;
    });
  }
}

void Core::SayFarewell() {
  coordinator_.StepLocal();
  coordinator_.End(
      Status(StatusCode::kAborted, "the session was shut down before the operation finished"),
      Status::Ok());
  mesh_->Close();
}

// --- hvl-exec ---------------------------------------------------------------------------------

void Core::ExecutorThread() {
  for (;;) {
    if (executor_role_.TryTake()) {
      if (stopping_.load()) return;
      while (executor_.RunNext(kAnyBytes, true)) {
        if (drivers_.load() == 0 && (news_.gathering.load() || queue_.has_failure())) {
          coordinator_rest_.Wake();
        }
      }
      executor_role_.Release();
    }
    executor_rest_.Rest(
        [this] { return !executor_role_.taken() && (queue_.has_ready() || stopping_.load()); });
  }
}

// --- Waiting threads --------------------------------------------------------------------------

/// Works until `state` is done, or until nothing has moved for the time of the spin.
void Core::Drive(Handle::State& state, std::optional<TimePoint> deadline) {
  const std::optional<std::size_t> max_bytes = BatchLimit(deadline);
  EnterDriving();
  std::optional<TimePoint> spin_end;  // set after the first turn: a lone operation needs no more
  while (!stopping_.load()) {
    bool worked = TryCoordinate();
    if (state.done()) break;
    worked |= TryExecute(state, max_bytes);
    if (state.done()) break;
    const TimePoint now = SteadyClock().Now();
    if (deadline && now >= *deadline) break;
    if (worked || !spin_end) spin_end = now + spin_;
    if (now >= *spin_end) break;
    if (*spin_end - now > spin_ - keep_core_) {
      Pause();
    } else {
      sched_yield();
    }
  }
  LeaveDriving();
  // What others have asked for goes on without them, at the latest after a short park.
  const bool unfinished = registry_.submitted() != registry_.completed();
  if (unfinished && drivers_.load() == 0 && coordinator_rest_.ParkedFor(kParkTime)) {
    coordinator_rest_.Wake();
  }
}

/// Runs one batch. Meanwhile this thread does not drive: the links belong to the coordinator
/// thread, so that the death of a peer is noticed.
bool Core::TryExecute(const Handle::State& state, std::optional<std::size_t> max_bytes) {
  if (!queue_.has_ready()) return false;
  if (!max_bytes) executor_rest_.Wake();
  if (!max_bytes || !executor_role_.TryTake()) return false;
  bool ran = false;
  if (!state.done()) {
    LeaveDriving();
    // At a gate it may be for long, and a thread with a deadline has to look at it.
    ran = executor_.RunNext(*max_bytes, *max_bytes == kAnyBytes);
    EnterDriving();
  }
  executor_role_.Release();
  if (!ran || stopping_.load()) executor_rest_.Wake();
  return ran;
}

void Core::EnterDriving() {
  drives_.fetch_add(1);
  drivers_.fetch_add(1);
}

void Core::LeaveDriving() {
  TryLocalWork();
  if (drivers_.fetch_sub(1) > 1) return;  // the others have made the same promise
  if (HasCoordinatorWork() || stopping_.load() ||
      (sleepers_.load() > 0 && coordinator_rest_.parked()) ||
      coordinator_rest_.SleepsBeyond(news_.deadline.load())) {
    coordinator_rest_.Wake();
  }
  WakeExecutorIfNeeded();
}

// --- Both -------------------------------------------------------------------------------------

bool Core::TryCoordinate() {
  if (!coordinator_role_.TryTake()) return false;
  const bool worked = coordinator_.Step();
  coordinator_role_.Release();
  TryLocalWork();
  return worked;
}

/// The look back that every holder of the coordinator role owes to those who found it taken.
void Core::TryLocalWork() {
  while (HasCoordinatorWork() && coordinator_role_.TryTake()) {
    coordinator_.StepLocal();
    coordinator_role_.Release();
  }
}

bool Core::HasCoordinatorWork() const { return registry_.has_enough() || queue_.has_news(); }

/// Somebody relies on the coordinator thread.
bool Core::NeedsCoordinator() const {
  return HasCoordinatorWork() || sleepers_.load() > 0 || stopping_.load();
}

void Core::WakeExecutorIfNeeded() {
  if (queue_.has_ready() && drivers_.load() == 0 && !executor_role_.taken()) executor_rest_.Wake();
}

}  // namespace hvl::engine
