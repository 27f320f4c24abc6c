#include "csrc/session/bootstrap.h"

#include <optional>
#include <utility>

#include "csrc/base/str.h"
#include "csrc/net/meeting.h"
#include "csrc/net/process.h"
#include "csrc/session/mpi_meeting.h"
#include "csrc/session/settings.h"

namespace hvl::session {
namespace {

Result<MeetingPlace> StoreOfHvlrun(const config::Config& config, const Interrupted& interrupted) {
  if (config.secret_fd < 0 && config.secret_file.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "HVL_STORE is set, but HVL_SECRET_FD is not: the job's secret is missing; start "
                  "the ranks with hvlrun");
  }
  HVL_ASSIGN_OR_RETURN(const net::Secret secret, config.secret_fd >= 0
                                                     ? net::Secret::FromFd(config.secret_fd)
                                                     : net::Secret::FromFile(config.secret_file));
  HVL_ASSIGN_OR_RETURN(
      std::unique_ptr<net::Store> store,
      net::OpenStore(config.store, secret, config.job_id, interrupted, net::WhenAbsent::kFail,
                     SecondsToDuration(config.host_timeout_seconds)));
  return MeetingPlace{.store = std::move(store), .secret = secret, .job_id = config.job_id};
}

/// What tells this job from others: variables, or else the launcher's process above the ranks.
Result<std::string> JobOf(const config::Config& config, const config::Launch& launch) {
  if (!launch.job.empty()) return launch.job;
  std::optional<pid_t> parent;
  if (!launch.parent.empty()) parent = net::AncestorNamed(launch.parent);
  if (parent) return Format("{} {} of {}", launch.parent, *parent, net::PidScope());
  return Status(StatusCode::kInvalidArgument,
                Format("this process is rank {} of {} ({}), but nothing tells its job from others; "
                       "set HVL_JOB_ID (or MASTER_PORT, where RANK is set) to the same value on "
                       "all ranks and to another one for each job, or start the ranks with hvlrun",
                       config.rank, config.size, launch.variables));
}

/// Everybody's ranks of one host meet by name; those of several hosts could not.
class NamedPlace final : public net::Store {
 public:
  NamedPlace(std::unique_ptr<net::Store> store, std::string_view family, std::string job)
      : store_(std::move(store)), family_(family), job_(std::move(job)) {}

  Result<net::Rendezvous> Join(int rank, int size, const std::string& blob,
                               Duration timeout) override {
    Result<net::Rendezvous> met = store_->Join(rank, size, blob, timeout);
    if (met.status().code() != StatusCode::kTimeout) return met;
    return Status(met.status().code(),
                  Format("{}. They meet on one host, by {} (from {}): a rank on another host, of "
                         "another user or with another name is missing to the others",
                         met.status().message(), job_, family_));
  }

 private:
  const std::unique_ptr<net::Store> store_;
  const std::string_view family_;
  const std::string job_;
};

bool IsLoopbackName(std::string_view host) {
  return host.empty() || host == "localhost" || host == "::1" || host.starts_with("127.");
}

/// Whether ranks of other hosts belong to this job, as far as anybody says.
bool MaySpanHosts(const config::Config& config, const config::Launch& launch) {
  if (launch.knows_host) return config.local_size < config.size;
  return !IsLoopbackName(launch.head);
}

/// MPI is used for nothing but the data, unless it has to be.
bool MeetsOverMpi(const config::Config& config, const config::Launch& launch) {
  const bool has_head = !launch.head.empty() && launch.head_port != 0;
  return launch.is_mpi && (!has_head || config.cpu_operations == config::CpuOperations::kMpi);
}

Result<MeetingPlace> PlaceInMpi(const config::Config& config, const config::Launch& launch,
                                const Interrupted& interrupted, const Logger& logger) {
  HVL_LOG(logger, kDebug, "session", "place of {} ({}); the ranks meet over MPI", launch.family,
          launch.variables);
  Result<MpiMeeting> meeting = MeetOverMpi(config, interrupted, logger);
  if (!meeting.ok()) {
    return Status(
        meeting.status().code(),
        Format("{} of {} ranks are on this host ({}), and they cannot find the others "
               "through MPI: {}. MASTER_ADDR and MASTER_PORT (or HVL_STORE_PORT), the "
               "same on all ranks, name a host and a port of rank 0 to meet at instead",
               config.local_size, config.size, launch.variables, meeting.status().message()));
  }
  return MeetingPlace{
      .store = std::move(meeting->store), .secret = {}, .job_id = std::move(meeting->job_id)};
}

Status NoHead(const config::Config& config, const config::Launch& launch) {
  return {StatusCode::kInvalidArgument,
          Format("{} of {} ranks are on this host ({}), and nothing tells where rank 0 is: set "
                 "MASTER_ADDR to its host, and MASTER_PORT (or HVL_STORE_PORT) to the same port on "
                 "all ranks, or start them with hvlrun",
                 config.local_size, config.size, launch.variables)};
}

/// Ranks of several hosts meet at rank 0.
Result<MeetingPlace> PlaceOfHead(const config::Config& config, const config::Launch& launch,
                                 const Interrupted& interrupted, const Logger& logger) {
  if (launch.head.empty() || launch.head_port == 0) return NoHead(config, launch);
  const std::string facts = Format("{} at {}:{}", launch.job, launch.head, launch.head_port);
  net::HeadPlace place{
      .address = {.host = launch.head, .port = static_cast<std::uint16_t>(launch.head_port)},
      .networks = config.network,
      .secret = net::KeyFor("hvl head", facts),
      .job_id = net::MeetingId(facts),
      .silence_limit = SecondsToDuration(config.host_timeout_seconds)};
  if (!config.secret_file.empty()) {
    HVL_ASSIGN_OR_RETURN(place.secret, net::Secret::FromFile(config.secret_file));
  } else if (config.rank == 0) {
    HVL_LOG(logger, kWarning, "session",
            "the links between hosts are not secret: who can reach them and knows this job's "
            "variables could join it. Give all hosts the same secret with HVL_SECRET_FILE, or "
            "start the ranks with hvlrun");
  }
  HVL_LOG(logger, kDebug, "session", "place of {} ({}); the ranks meet by {}", launch.family,
          launch.variables, facts);
  std::string job_id = place.job_id;
  return MeetingPlace{.store = net::MeetAtRankZero(std::move(place), interrupted, logger),
                      .secret = {},
                      .job_id = std::move(job_id)};
}

}  // namespace

Result<MeetingPlace> FindMeetingPlace(const config::Config& config, const config::Launch& launch,
                                      const Interrupted& interrupted, const Logger& logger) {
  if (!config.store.empty()) return StoreOfHvlrun(config, interrupted);
  if (config.size == 1) return MeetingPlace{.store = {}, .secret = {}, .job_id = config.job_id};
  if (MaySpanHosts(config, launch) && MeetsOverMpi(config, launch)) {
    return PlaceInMpi(config, launch, interrupted, logger);
  }
  if (MaySpanHosts(config, launch)) return PlaceOfHead(config, launch, interrupted, logger);
  HVL_ASSIGN_OR_RETURN(std::string job, JobOf(config, launch));
  std::string id = net::MeetingId(job);
  HVL_LOG(logger, kDebug, "session", "place of {} ({}); the ranks meet by {}", launch.family,
          launch.variables, job);
  auto store = net::MeetByName(id, interrupted, logger);
  return MeetingPlace{
      .store = std::make_unique<NamedPlace>(std::move(store), launch.family, std::move(job)),
      .secret = {},
      .job_id = std::move(id)};
}

}  // namespace hvl::session
