#include "horovodlite/session.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <set>
#include <utility>

#include "csrc/base/abandon.h"
#include "csrc/base/check.h"
#include "csrc/base/clock.h"
#include "csrc/base/freed_memory.h"
#include "csrc/base/mutex.h"
#include "csrc/base/status_page.h"
#include "csrc/base/str.h"
#include "csrc/collective/backend.h"
#include "csrc/config/launch.h"
#include "csrc/engine/engine.h"
#include "csrc/net/mesh.h"
#include "csrc/plan/planner.h"
#include "csrc/session/agreement.h"
#include "csrc/session/bootstrap.h"
#include "csrc/session/data_plane.h"
#include "csrc/session/session_impl.h"
#include "csrc/session/settings.h"
#include "csrc/session/subset.h"
#include "csrc/session/tuning_log.h"
#include "csrc/trace/trace.h"

namespace hvl::session {
namespace {

constexpr std::align_val_t kCacheLine{64};

Result<SharedBuffer> AllocatePlain(std::size_t bytes) {
  void* const memory = ::operator new(bytes, kCacheLine, std::nothrow);
  if (memory == nullptr) {
    return Status(StatusCode::kResourceExhausted, Format("no memory for {} bytes", bytes));
  }
  std::memset(memory, 0, bytes);
  return SharedBuffer{
      {memory, [](void* owned) { ::operator delete(owned, kCacheLine); }}, memory, bytes};
}

class SessionImpl final : public Session {
 public:
  SessionImpl(World world, std::string data_plane, bool keeps_memory,
              std::unique_ptr<StatusPage> status, std::unique_ptr<engine::Engine> engine,
              std::shared_ptr<trace::ChromeTimeline> timeline, Logger logger)
      : world_(world),
        data_plane_(std::move(data_plane)),
        keeps_memory_(keeps_memory),
        status_(std::move(status)),
        engine_(std::move(engine)),
        logger_(std::move(logger)),
        timeline_(std::move(timeline)) {}
  SessionImpl(const SessionImpl&) = delete;
  SessionImpl& operator=(const SessionImpl&) = delete;

  // In a forked child the timeline's writer thread does not exist: the child leaks its copy.
  ~SessionImpl() override {
    if (engine_->in_child()) {
      Abandon(std::move(timeline_));
    } else {
      Shutdown();
    }
  }

  const World& world() const override { return world_; }

  Result<Handle> Submit(Operation operation, bool caller_waits) override {
    return engine_->Submit(std::move(operation), caller_waits);
  }

  Result<Handle> Submit(std::shared_ptr<const Operation> operation, bool caller_waits) override {
    return engine_->Submit(std::move(operation), caller_waits);
  }

  Status Run(Operation operation, std::vector<GatheredTensor>* gathered) override {
    HVL_ASSIGN_OR_RETURN(Handle handle, engine_->Submit(std::move(operation), true));
    HVL_RETURN_IF_ERROR(handle.Wait());
    if (gathered != nullptr) *gathered = handle.gathered();
    return Status::Ok();
  }

  Result<ProcessSetId> AddProcessSet(std::vector<int> ranks,
                                     const Interrupted& interrupted) override {
    return engine_->AddProcessSet(std::move(ranks), interrupted);
  }
  Status RemoveProcessSet(ProcessSetId id, const Interrupted& interrupted) override {
    return engine_->RemoveProcessSet(id, interrupted);
  }
  Result<std::vector<int>> ProcessSetRanks(ProcessSetId id) const override {
    return engine_->ProcessSetRanks(id);
  }

  Result<SharedBuffer> Allocate(std::size_t bytes) override {
    // What is allocated here is for gradients, and as much will be freed where they come from.
    if (keeps_memory_) KeepFreedMemory(allocated_bytes_.fetch_add(bytes) + bytes);
    Result<SharedBuffer> shared = engine_->Allocate(bytes);
    if (shared.status().code() != StatusCode::kNotSupported) return shared;
    return AllocatePlain(bytes);
  }

  void Shutdown() override {
    engine_->Stop();
    if (engine_->in_child()) return;
    if (const Status status = ReplaceTimeline(nullptr, false); !status.ok()) {
      HVL_LOG(logger_, kError, "session", "the timeline is incomplete: {}", status.message());
    }
  }

  Status health() const override { return engine_->health(); }
  SessionCounters counters() const override { return engine_->counters(); }
  std::string_view data_plane() const override { return data_plane_; }

  Status StartTimeline(const std::string& path, bool mark_cycles) override {
    HVL_RETURN_IF_ERROR(engine_->health());
    HVL_ASSIGN_OR_RETURN(std::unique_ptr<trace::ChromeTimeline> timeline,
                         trace::ChromeTimeline::Open(path, world_.rank, SteadyClock().Now()));
    return ReplaceTimeline(std::move(timeline), mark_cycles);
  }

  Status StopTimeline() override {
    HVL_RETURN_IF_ERROR(engine_->health());
    return ReplaceTimeline(nullptr, false);
  }

 private:
  /// The old timeline is complete on disk afterwards; returns what went wrong in writing it.
  Status ReplaceTimeline(std::shared_ptr<trace::ChromeTimeline> timeline, bool mark_cycles) {
    const MutexLock lock(timeline_mutex_);
    engine_->SetTrace(timeline, mark_cycles);
    std::swap(timeline_, timeline);
    return timeline == nullptr ? Status::Ok() : timeline->Close();
  }

  const World world_;
  const std::string data_plane_;
  const bool keeps_memory_;
  const std::unique_ptr<StatusPage> status_;  // may be null; the engine uses it
  const std::unique_ptr<engine::Engine> engine_;
  const Logger logger_;
  std::atomic<std::size_t> allocated_bytes_{0};
  Mutex timeline_mutex_;
  // Shared with the engine.
  std::shared_ptr<trace::ChromeTimeline> timeline_ HVL_GUARDED_BY(timeline_mutex_);
};

Result<std::unique_ptr<net::Mesh>> JoinMesh(const config::Config& config, net::Store* store,
                                            const net::Secret& secret, const Logger& logger) {
  net::MeshOptions options{.rank = config.rank,
                           .size = config.size,
                           .job_id = config.job_id,
                           .secret = secret,
                           .timeout = SecondsToDuration(config.start_timeout_seconds),
                           .blob = DescribeRank(config),
                           .networks = config.network,
                           .silence_limit = SecondsToDuration(config.host_timeout_seconds)};
  if (store != nullptr) return net::Mesh::Join(*store, std::move(options), logger);
  HVL_CHECK(config.size == 1, "several ranks need a store to meet at");
  net::MemoryStore world_of_one;
  return net::Mesh::Join(world_of_one, std::move(options), logger);
}

/// What HVL_TIMELINE asks of this rank. A run is worth more than its timeline: when it cannot be
/// written, that is logged and the run goes on without one.
std::shared_ptr<trace::ChromeTimeline> OpenTimeline(const config::Config& config,
                                                    const Logger& logger) {
  if (!WritesTimeline(config)) return nullptr;
  auto timeline = trace::ChromeTimeline::Open(config.timeline, config.rank, SteadyClock().Now());
  if (timeline.ok()) return std::move(timeline).value();
  HVL_LOG(logger, kError, "session", "no timeline: {}", timeline.status().message());
  return nullptr;
}

/// Why there is nothing to tune in this session; empty when there is.
std::string NothingToTune(const config::Config& config, const collective::Backend& backend) {
  if (!backend.has_gates()) {
    return Format(
        "HVL_AUTOTUNE has no effect: it tunes frozen plans, which need shared memory between all "
        "ranks, and the data plane is '{}'",
        backend.name());
  }
  if (config.freeze_after == 0) return "HVL_AUTOTUNE has no effect: HVL_FREEZE_AFTER is 0";
  return {};
}

/// Where the tuner's samples go. As with the timeline, a run is worth more than its log.
std::function<void(const plan::TunerSample&)> OpenTuningLog(const config::Config& config,
                                                            const collective::Backend& backend,
                                                            const Logger& logger) {
  if (config.rank != 0 || !config.autotune) return nullptr;
  const std::string nothing = NothingToTune(config, backend);
  if (!nothing.empty()) HVL_LOG(logger, kWarning, "session", "{}", nothing);
  if (config.autotune_log.empty()) return nullptr;
  auto log = TuningLog::Open(config.autotune_log, SteadyClock().Now());
  if (!log.ok()) {
    HVL_LOG(logger, kError, "session", "no log of the autotuner: {}", log.status().message());
    return nullptr;
  }
  if (!nothing.empty()) {
    log.value()->Remark(nothing);
    return nullptr;
  }
  return [log = std::shared_ptr<TuningLog>(std::move(log).value())](  // a function is copyable
             const plan::TunerSample& sample) { log->Write(sample, SteadyClock().Now()); };
}

/// Takes the page when it succeeds.
Result<std::unique_ptr<Session>> BuildSession(config::Config config, net::Store* store,
                                              const net::Secret& secret,
                                              std::shared_ptr<LogSink> sink,
                                              std::unique_ptr<StatusPage>* page) {
  const Logger logger(std::move(sink), config.log_level, Format("{}/{}", config.rank, config.size),
                      config.log_hide_time);
  HVL_ASSIGN_OR_RETURN(std::unique_ptr<net::Mesh> mesh, JoinMesh(config, store, secret, logger));
  PlaceByHosts(mesh->hosts(), &config);
  HVL_RETURN_IF_ERROR(CheckAgreement(mesh->blobs()));
  HVL_ASSIGN_OR_RETURN(std::unique_ptr<collective::Backend> backend,
                       MakeDataPlane(config, *mesh, logger));
  const World world{.rank = config.rank,
                    .size = config.size,
                    .local_rank = config.local_rank,
                    .local_size = config.local_size,
                    .cross_rank = config.cross_rank,
                    .cross_size = config.cross_size,
                    .generation = mesh->generation()};
  std::string data_plane(backend->name());
  HVL_LOG(logger, kDebug, "session", "generation={} data_plane={}", world.generation, data_plane);
  std::unique_ptr<plan::Planner> planner = plan::Planner::Create(
      world.rank, world.size, world.generation, PlannerOptions(config, backend->has_gates()));
  engine::Options options = EngineOptions(config);
  if (const Result<std::optional<int>> processor = ThreadProcessor(config); processor.ok()) {
    options.thread_processor = *processor;
  } else {
    HVL_LOG(logger, kWarning, "session", "{}", processor.status().message());
  }
  std::shared_ptr<trace::ChromeTimeline> timeline = OpenTimeline(config, logger);
  options.trace = timeline;
  options.mark_cycles = config.timeline_mark_cycles;
  options.on_sample = OpenTuningLog(config, *backend, logger);
  options.status = page->get();
  // Now, because it is the engine's page from its start on.
  if (*page) (*page)->SetPhase(RankPhase::kRunning);
  HVL_ASSIGN_OR_RETURN(
      std::unique_ptr<engine::Engine> engine,
      engine::Engine::Start(std::move(options), std::move(mesh), std::move(planner),
                            std::move(backend), logger, SteadyClock()));
  return std::unique_ptr<Session>(std::make_unique<SessionImpl>(
      world, std::move(data_plane), KeepsFreedMemory(config, config::ProcessEnv()),
      std::move(*page), std::move(engine), std::move(timeline), logger));
}

}  // namespace

Result<std::unique_ptr<Session>> CreateSession(const config::Config& config, net::Store* store,
                                               const net::Secret& secret,
                                               std::shared_ptr<LogSink> sink) {
  std::unique_ptr<StatusPage> page = StatusPage::Open(config.status_fd);
  auto session = BuildSession(config, store, secret, std::move(sink), &page);
  if (!session.ok() && page) {
    const Status error = session.status();
    page->SetPhase(RankPhase::kJoining, error.culprit_rank(), error.ToString());
  }
  return session;
}

}  // namespace hvl::session

namespace hvl {
namespace {

// Whether this process has not been told so before: a program may join and leave many times.
bool IsNews(const std::string& warning) {
  static Mutex mutex;
  static std::set<std::string> told;
  const MutexLock lock(mutex);
  return told.insert(warning).second;
}

}  // namespace

Result<std::unique_ptr<Session>> Session::Create(std::vector<int> ranks,
                                                 const Interrupted& interrupted) {
  std::vector<std::string> warnings;
  const config::ProcessEnv environment;
  HVL_ASSIGN_OR_RETURN(config::Config config, config::Config::Parse(environment, &warnings));
  HVL_ASSIGN_OR_RETURN(const config::Launch launch, config::FindLaunch(environment, &config));
  const std::shared_ptr<LogSink> sink = StderrSink();
  const Logger logger(sink, config.log_level, Format("{}/{}", config.rank, config.size),
                      config.log_hide_time);
  for (const std::string& warning : warnings) {
    // Every rank has the same environment, so one of them tells it.
    if (config.rank == 0 && IsNews(warning)) HVL_LOG(logger, kWarning, "config", "{}", warning);
  }
  std::sort(ranks.begin(), ranks.end());
  HVL_ASSIGN_OR_RETURN(const session::MeetingPlace place,
                       session::FindMeetingPlace(config, launch, interrupted, logger));
  config.job_id = place.job_id;
  config::Config part = config;
  if (!ranks.empty()) {
    HVL_ASSIGN_OR_RETURN(part, session::SubsetConfig(config, ranks));
    part.status_fd = -1;  // its ranks have other numbers than the launcher's
  }
  if (ranks.empty() || place.store == nullptr) {
    return session::CreateSession(config, place.store.get(), place.secret, sink);
  }
  session::SubsetStore subset(*place.store, config, std::move(ranks));
  return session::CreateSession(part, &subset, place.secret, sink);
}

}  // namespace hvl
