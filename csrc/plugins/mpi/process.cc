#include "csrc/plugins/mpi/process.h"

#include <unistd.h>

#include <cstdlib>
#include <numeric>
#include <utility>

#include "csrc/base/abandon.h"
#include "csrc/base/str.h"
#include "csrc/plugin/exported.h"
#include "csrc/plugins/mpi/backend.h"
#include "csrc/plugins/mpi/meeting.h"

namespace hvl::mpi {
namespace {

// Never destroyed: its thread and MPI go on until the process ends.
Process& TheProcess() {
  static auto* const process = new Process();
  return *process;
}

const char* LevelName(int level) {
  if (level == MPI_THREAD_MULTIPLE) return "MPI_THREAD_MULTIPLE";
  if (level == MPI_THREAD_SERIALIZED) return "MPI_THREAD_SERIALIZED";
  return level == MPI_THREAD_FUNNELED ? "MPI_THREAD_FUNNELED" : "MPI_THREAD_SINGLE";
}

bool Finalised() {
  int finalised = 0;
  return MPI_Finalized(&finalised) == MPI_SUCCESS && finalised != 0;
}

struct Meeting {
  Card own;
  std::vector<Card> all;
};

/// What processes say to each other, one after the other.
struct Conversation {
  std::string own;
  int own_bytes = 0;
  std::vector<int> bytes;   ///< by MPI's rank
  std::vector<int> begins;  ///< likewise
  std::string all;
};

Status Never() { return Status::Ok(); }

}  // namespace

Status MpiStatus(int code, std::string_view call) {
  if (code == MPI_SUCCESS) return Status::Ok();
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  text.resize(static_cast<std::size_t>(length));
  return {StatusCode::kUnavailable, Format("{} failed: {} (code {})", call, text, code)};
}

Status Process::Perform(const std::function<Status()>& work) {
  return threads_supported() ? work() : thread_.Run(work);
}

void Process::Break(const Status& cause) {
  const MutexLock lock(mutex_);
  if (broken_.ok()) broken_ = cause;
}

Status Process::broken() const {
  const MutexLock lock(mutex_);
  return broken_;
}

// --- Start and end --------------------------------------------------------------------------

Process::Process() : pid_(::getpid()) {}

// What makes MPI useless in this process for good.
Status Process::Usable() const {
  if (::getpid() != pid_) {
    return {StatusCode::kNotSupported,
            "this process was made by fork from one that has MPI, and MPI does not "
            "work in such a child: call init() in the parent only, or start the process anew (with "
            "multiprocessing: the start method spawn)"};
  }
  const Status cause = broken();
  if (cause.ok()) return Status::Ok();
  return {StatusCode::kNotSupported,
          Format("an earlier session over MPI was interrupted ({}), and MPI cannot take back "
                 "what it had begun; start the processes again",
                 cause.message())};
}

// Which calls are legal. With MPI_THREAD_MULTIPLE: all. Below that, calls must not meet those of
// the program, which we cannot see to when it is the program that uses MPI. When MPI is ours, all
// calls come from the thread that has initialised it, which MPI_THREAD_FUNNELED allows.
Status Process::CheckLevel() const {
  const int level = level_.load();
  if (level == MPI_THREAD_MULTIPLE || (ours_ && level >= MPI_THREAD_FUNNELED)) return Status::Ok();
  if (ours_) {
    return {StatusCode::kNotSupported,
            Format("this MPI gives {} only, and the runtime has threads; use a build of MPI with "
                   "thread support",
                   LevelName(level))};
  }
  return {
      StatusCode::kNotSupported,
      Format("the program has initialised MPI with {}, but the runtime calls MPI from threads of "
             "its own and needs MPI_THREAD_MULTIPLE: ask MPI_Init_thread for that (mpi4py does "
             "unless told otherwise), or call init() before MPI is initialised",
             LevelName(level))};
}

Status Process::Initialise(const plugin::MpiOptions& options) {
  if (Finalised()) {
    return {StatusCode::kNotSupported,
            "MPI has been finalised in this process and cannot be started a second time; call "
            "MPI_Finalize after the last shutdown()"};
  }
  if (!initialised_) {
    const int wanted = options.one_thread ? MPI_THREAD_FUNNELED : MPI_THREAD_MULTIPLE;
    const Status done = thread_.Run(
        [this, wanted] {
          int initialised = 0;
          HVL_RETURN_IF_ERROR(MpiStatus(MPI_Initialized(&initialised), "MPI_Initialized"));
          int level = MPI_THREAD_SINGLE;
          if (initialised != 0) {
            HVL_RETURN_IF_ERROR(MpiStatus(MPI_Query_thread(&level), "MPI_Query_thread"));
          } else {
            const int code = MPI_Init_thread(nullptr, nullptr, wanted, &level);
            HVL_RETURN_IF_ERROR(MpiStatus(code, "MPI_Init_thread"));
            MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
            ours_ = true;
            // Now, so that it comes before the exit handlers that MPI has just registered.
            ::on_exit([](int exit_status, void*) { TheProcess().FinaliseAtExit(exit_status); },
                      nullptr);
          }
          level_.store(level);
          return Status::Ok();
        },
        options.start_timeout, Never);
    if (done.code() == StatusCode::kTimeout) {
      const Status stuck(
          StatusCode::kTimeout,
          Format("MPI_Init_thread waits for the other processes of MPI's world, and "
                 "not all have come within {} s (HVL_START_TIMEOUT); start all ranks "
                 "with one mpirun, each with HVL_CPU_OPERATIONS=mpi",
                 std::chrono::duration<double>(options.start_timeout).count()));
      Break(stuck);
      return stuck;
    }
    HVL_RETURN_IF_ERROR(done);
    initialised_ = true;
  }
  return CheckLevel();
}

// The end of the world is collective: it waits for all others. So it is left out when MPI cannot
// be used any more, and when the process has failed while others may still be at work; mpirun then
// ends the job, which is the best that can happen to it.
void Process::FinaliseAtExit(int exit_status) {
  if (exit_status != 0 || ::getpid() != pid_ || !broken().ok()) return;
  static_cast<void>(thread_.Run(
      [] { return Finalised() ? Status::Ok() : MpiStatus(MPI_Finalize(), "MPI_Finalize"); }));
}

// --- Communicators --------------------------------------------------------------------------

Result<MPI_Comm> Process::MakeCommunicator(MPI_Comm parent, std::vector<int> ranks, Duration limit,
                                           const std::function<Status()>& given_up) {
  // MPI may write there when nobody waits any more.
  const auto made = std::make_shared<MPI_Comm>(MPI_COMM_NULL);
  const Status done = thread_.Run(
      [parent, made, ranks = std::move(ranks)] {
        constexpr int kTag = 4747;
        MPI_Group all = MPI_GROUP_NULL;
        MPI_Group members = MPI_GROUP_NULL;
        HVL_RETURN_IF_ERROR(MpiStatus(MPI_Comm_group(parent, &all), "MPI_Comm_group"));
        int code = MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &members);
        if (code == MPI_SUCCESS) code = MPI_Comm_create_group(parent, members, kTag, made.get());
        if (members != MPI_GROUP_NULL) MPI_Group_free(&members);
        MPI_Group_free(&all);
        HVL_RETURN_IF_ERROR(MpiStatus(code, "MPI_Comm_create_group"));
        code = MPI_Comm_set_errhandler(*made, MPI_ERRORS_RETURN);
        return MpiStatus(code, "MPI_Comm_set_errhandler");
      },
      limit, given_up);
  if (done.ok()) return *made;
  Break(done);
  return done;
}

void Process::FreeCommunicator(MPI_Comm communicator) {
  if (!broken().ok()) return;
  thread_.Post([this, communicator] {
    MPI_Comm freed = communicator;
    if (broken().ok() && !Finalised()) MPI_Comm_free(&freed);
  });
}

// --- Without a session ------------------------------------------------------------------------

// Two allgathers: of sizes, and of what has these sizes.
Result<std::vector<std::string>> Process::Exchange(const std::string& own,
                                                   const plugin::MpiOptions& options,
                                                   const Interrupted& interrupted) {
  HVL_RETURN_IF_ERROR(Usable());
  HVL_RETURN_IF_ERROR(Initialise(options));
  Means means(*this, options);
  const TimePoint deadline = SteadyClock().Now() + options.start_timeout;
  auto said = std::make_shared<Conversation>();
  said->own = own;
  said->own_bytes = static_cast<int>(own.size());
  const auto talk = [&]() -> Status {
    int processes = 0;
    HVL_RETURN_IF_ERROR(MpiStatus(MPI_Comm_size(MPI_COMM_WORLD, &processes), "MPI_Comm_size"));
    said->bytes.resize(static_cast<std::size_t>(processes));
    said->begins.resize(said->bytes.size());
    HVL_RETURN_IF_ERROR(means.Complete(
        "MPI_Iallgather",
        [&said](MPI_Request* request) {
          return MPI_Iallgather(&said->own_bytes, 1, MPI_INT, said->bytes.data(), 1, MPI_INT,
                                MPI_COMM_WORLD, request);
        },
        deadline));
    std::exclusive_scan(said->bytes.begin(), said->bytes.end(), said->begins.begin(), 0);
    said->all.resize(static_cast<std::size_t>(said->begins.back()) +
                     static_cast<std::size_t>(said->bytes.back()));
    return means.Complete(
        "MPI_Iallgatherv",
        [&said](MPI_Request* request) {
          return MPI_Iallgatherv(said->own.data(), said->own_bytes, MPI_BYTE, said->all.data(),
                                 said->bytes.data(), said->begins.data(), MPI_BYTE, MPI_COMM_WORLD,
                                 request);
        },
        deadline);
  };
  // Here the interruption is asked for, there MPI is called until the end, which comes by then.
  constexpr auto kLong = std::chrono::hours(24 * 365);
  const Status done = thread_.Run(talk, kLong, [&means, &interrupted] {
    if (interrupted && interrupted()) {
      means.stop().Set({StatusCode::kAborted, "joining was interrupted while ranks were missing"});
    }
    return Status::Ok();
  });
  if (!broken().ok()) Abandon(said);  // MPI may still write there
  HVL_RETURN_IF_ERROR(done);
  std::vector<std::string> words;
  for (std::size_t i = 0; i < said->bytes.size(); ++i) {
    words.push_back(said->all.substr(static_cast<std::size_t>(said->begins[i]),
                                     static_cast<std::size_t>(said->bytes[i])));
  }
  return words;
}

// --- Sessions -------------------------------------------------------------------------------

Result<std::unique_ptr<collective::Backend>> Process::CreateBackend(plugin::MpiOptions options,
                                                                    const Logger& logger) {
  HVL_RETURN_IF_ERROR(Usable());
  HVL_RETURN_IF_ERROR(Initialise(options));
  auto means = std::make_shared<Means>(*this, options);
  const Card own{.session = SessionNumber(options.session),
                 .rank = static_cast<std::int32_t>(options.rank),
                 .size = static_cast<std::int32_t>(options.size)};
  const auto meeting = std::make_shared<Meeting>(Meeting{.own = own, .all = {}});
  const Status met = Perform([&] {
    int processes = 0;
    HVL_RETURN_IF_ERROR(MpiStatus(MPI_Comm_size(MPI_COMM_WORLD, &processes), "MPI_Comm_size"));
    if (processes < options.size) {
      return Status(
          StatusCode::kMismatch,
          Format("MPI_COMM_WORLD of rank {} has {} of {} processes; start all of them with "
                 "one mpirun, that of the MPI that is loaded",
                 options.rank, processes, options.size));
    }
    meeting->all.resize(static_cast<std::size_t>(processes));
    return means->Complete(
        "MPI_Iallgather",
        [&meeting](MPI_Request* request) {
          const int bytes = sizeof(Card);
          return MPI_Iallgather(&meeting->own, bytes, MPI_BYTE, meeting->all.data(), bytes,
                                MPI_BYTE, MPI_COMM_WORLD, request);
        },
        SteadyClock().Now() + options.start_timeout);
  });
  if (!broken().ok()) Abandon(meeting);  // MPI may still write there
  HVL_RETURN_IF_ERROR(met);
  HVL_ASSIGN_OR_RETURN(std::vector<int> mpi_ranks, FindRanks(meeting->all, own));
  HVL_ASSIGN_OR_RETURN(MPI_Comm communicator, MakeCommunicator(MPI_COMM_WORLD, std::move(mpi_ranks),
                                                               options.start_timeout, Never));
  HVL_LOG(logger, kDebug, "mpi", "processes={} threads={} initialised_by={}", meeting->all.size(),
          LevelName(level_.load()), ours_ ? "horovodlite" : "the program");
  return MakeBackend(std::move(means), communicator);
}

}  // namespace hvl::mpi

HVL_PLUGIN_ENTRY() {
  static const hvl::plugin::Exported exported = {
      .version = HVL_PLUGIN_VERSION,
      .interface = hvl::plugin::Mpi::kInterface,
      .object = static_cast<hvl::plugin::Mpi*>(&hvl::mpi::TheProcess())};
  return &exported;
}
