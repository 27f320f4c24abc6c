// How a job starts that runs on several hosts: call the agents; when all have answered, decide by
// which addresses the ranks meet; then order. Nothing is started while a host is missing.
#include <unistd.h>

#include <algorithm>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "launcher/errors.h"
#include "launcher/runner.h"

namespace hvl::launcher {
namespace {

using State = AgentLink::State;

constexpr std::size_t kMaxNamedHosts = 8;
constexpr const char* kUsualDoor = "29400";
constexpr Duration kLocalSweepLimit = std::chrono::seconds(5);

/// One line for each host that something is wrong with, up to a number of them.
class HostTroubles {
 public:
  void Add(const std::string& host, const std::string& what) {
    if (++count_ <= kMaxNamedHosts) text_ += Format("host {}: {}\n", host, what);
  }
  bool any() const { return count_ > 0; }
  std::string Text() const {
    std::string text = text_;
    if (count_ > kMaxNamedHosts) text += Format("and {} other hosts\n", count_ - kMaxNamedHosts);
    return text + "the job was not started";
  }

 private:
  std::size_t count_ = 0;
  std::string text_;
};

std::vector<std::string> Missing(const std::vector<std::string>& known,
                                 const std::vector<std::string>& entries) {
  std::vector<std::string> missing;
  for (const std::string& entry : entries) {
    if (std::find(known.begin(), known.end(), entry) == known.end()) missing.push_back(entry);
  }
  return missing;
}

/// "pod-2" before "pod-10": runs of digits count as numbers.
bool NaturalLess(std::string_view a, std::string_view b) {
  const auto digits = [](std::string_view text) {
    return std::min(text.find_first_not_of("0123456789"), text.size());
  };
  while (!a.empty() && !b.empty()) {
    const std::size_t a_digits = digits(a);
    const std::size_t b_digits = digits(b);
    if (a_digits > 0 && b_digits > 0) {
      if (a_digits != b_digits) return a_digits < b_digits;
      const int order = a.substr(0, a_digits).compare(b.substr(0, b_digits));
      if (order != 0) return order < 0;
      a.remove_prefix(a_digits);
      b.remove_prefix(b_digits);
    } else {
      if (a.front() != b.front()) return a.front() < b.front();
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  return a.size() < b.size();
}

std::optional<double> QuotaOf(const Hello& hello) {
  if (hello.quota_thousandths < 0) return std::nullopt;
  return static_cast<double>(hello.quota_thousandths) / 1000;
}

std::size_t ProcessorCount(const Topology& cores) {
  std::size_t count = 0;
  for (const Core& core : cores) count += core.processors.size();
  return count;
}

}  // namespace

Status Runner::OpenAgents() {
  auto agents = std::make_unique<Agents>(poller_.get(), this, defaults_,
                                         [this](int signo) { HearSignal(signo); });
  agents_ = agents.get();
  host_ = std::move(agents);
  if (job_.shared_secret) return agents_->Open();
  agents_->set_starter_env(job_.inherited);
  for (const HostRanks& host : job_.hosts) {
    HVL_ASSIGN_OR_RETURN(Starter starter, StarterOf(job_, host));
    agents_->Add(host.host, std::move(starter));
  }
  return agents_->Open();
}

Refusal Runner::StartOnHosts() {
  Refusal refusal = job_.shared_secret ? AwaitGuests() : CallAgents();
  if (refusal.exit_code == 0) refusal = OrderRanks();
  if (refusal.exit_code != 0) {
    Apply(supervision_->LaunchFailed(SteadyClock().Now()));
    return refusal;
  }
  if (job_.options.verbose) {
    output_->Say(Format("job {}: started {} ranks on {} hosts, supervised by process {}",
                        facts_.job_id, job_.options.num_proc, job_.hosts.size(), ::getpid()));
    for (const AgentLink* link : members_) {
      if (link->started().message.empty()) continue;
      output_->Say(Format("host {}: the job has no control group: {}", link->host(),
                          link->started().message));
    }
  }
  return {};
}

Refusal Runner::CallAgents() {
  agents_->FinishRound();  // calls the first
  if (!Await([this] { return agents_->all_answered(); })) return Interrupted();
  HostTroubles troubles;
  for (const std::unique_ptr<AgentLink>& link : agents_->links()) {
    if (link->state() == State::kLost) {
      troubles.Add(link->host(), link->trouble());
    } else if (link->hello().version != HVL_VERSION) {
      troubles.Add(link->host(),
                   Format("its hvlrun is of version {} and this one of {}; install the same "
                          "version on all hosts",
                          link->hello().version, HVL_VERSION));
    }
  }
  for (const std::unique_ptr<AgentLink>& link : agents_->links()) members_.push_back(link.get());
  if (!troubles.any()) return {};
  return {kExitLauncherError, troubles.Text()};
}

/// Waits for agents that come by themselves. Who comes when is chance, so the ranks follow the
/// names of the hosts.
Refusal Runner::AwaitGuests() {
  const Result<std::string> own =
      HeadAddress(job_.options.head_address, job_.options.interfaces, {});
  if (!own.ok()) return {kExitLauncherError, own.status().message()};
  const std::string listen = job_.options.listen.empty() ? kUsualDoor : job_.options.listen;
  const Result<net::HostPort> place = ParseDoor("--listen", listen, *own);
  if (!place.ok()) return {kExitLauncherError, place.status().message()};
  door_ =
      std::make_unique<Door>(poller_.get(), *job_.shared_secret,
                             [this](net::UniqueFd connection, const net::LinkKeys& keys) {
                               // One that cannot be taken sees its connection closed.
                               static_cast<void>(agents_->AddGuest(std::move(connection), keys));
                             });
  if (const Status status = door_->Open(*place); !status.ok()) {
    return {kExitLauncherError, status.message()};
  }
  output_->Say(Format("waiting for {} agents (hvlrun --join) at {}", job_.hosts.size(),
                      door_->address().substr(std::string_view("tcp:").size())));
  const auto same_version = [](const AgentLink& link) {
    return link.state() == State::kReady && link.hello().version == HVL_VERSION;
  };
  const auto all_here = [&] {
    const auto count =
        std::count_if(agents_->links().begin(), agents_->links().end(),
                      [&](const std::unique_ptr<AgentLink>& link) { return same_version(*link); });
    return static_cast<std::size_t>(count) >= job_.hosts.size();
  };
  const bool complete = Await(all_here);
  door_.reset();
  if (!complete) return Interrupted();
  for (const std::unique_ptr<AgentLink>& link : agents_->links()) {
    if (same_version(*link) && members_.size() < job_.hosts.size()) {
      members_.push_back(link.get());
    } else {
      link->Dismiss();  // too many, or of another version
    }
  }
  std::sort(members_.begin(), members_.end(), [](const AgentLink* a, const AgentLink* b) {
    return NaturalLess(a->host(), b->host());
  });
  std::vector<std::string> names;
  for (const AgentLink* link : members_) names.push_back(link->host());
  NameHosts(names, &job_);
  return {};
}

Refusal Runner::OrderRanks() {
  std::vector<KnownHost> hosts;
  for (std::size_t i = 0; i < job_.hosts.size(); ++i) {
    hosts.push_back({.name = job_.hosts[i].host,
                     .is_this_machine = job_.hosts[i].is_this_machine,
                     .hello = &members_[i]->hello(),
                     .peer_address = members_[i]->peer_address()});
  }
  if (const Status status = Meet(hosts); !status.ok()) {
    return {kExitLauncherError, status.message()};
  }
  for (std::size_t i = 0; i < job_.hosts.size(); ++i) {
    if (members_[i]->state() != State::kReady) continue;  // lost meanwhile
    members_[i]->Order(OrderFor(job_.hosts[i], *hosts[i].hello));
  }
  if (!Await([this] { return agents_->all_started(); })) return Interrupted();
  HostTroubles troubles;
  int exit_code = 0;
  for (const AgentLink* link : members_) {
    if (link->started().exit_code != 0) {
      troubles.Add(link->host(), link->started().message);
      if (exit_code == 0) exit_code = link->started().exit_code;
    } else if (link->state() == State::kLost && link->started().pids.empty()) {
      troubles.Add(link->host(), link->trouble());
      exit_code = kExitLauncherError;
    }
  }
  if (!troubles.any()) return {};
  return {exit_code, troubles.Text()};
}

/// Opens the store, and fills in how ranks find it and each other.
Status Runner::Meet(const std::vector<KnownHost>& hosts) {
  HVL_ASSIGN_OR_RETURN(const std::string head,
                       HeadAddress(job_.options.head_address, job_.options.interfaces, hosts));
  const std::vector<std::string> addresses = {head};
  HVL_ASSIGN_OR_RETURN(
      store_, net::StoreServer::StartTcp(addresses, 0, secret_, facts_.job_id, StoreLogger()));
  if (store_ == nullptr) return Invalid(Format("no port is free at {}", head));
  facts_.store_address = store_->address();
  facts_.master_address = MasterAddress(hosts.front(), head);
  facts_.master_port = Format("{}", hosts.front().hello->free_port);
  if (job_.options.verbose) {
    output_->Say(Format("ranks meet at {}, rank 0 is found at {}", facts_.store_address,
                        facts_.master_address));
  }
  return Status::Ok();
}

StartOrder Runner::OrderFor(const HostRanks& host, const Hello& hello) const {
  const Binding binding =
      BindRanks(hello.cores, job_.options.bind, host.rank_count, QuotaOf(hello));
  JobFacts facts = facts_;
  facts.threads_per_rank = binding.threads_per_rank;
  facts.bound_processors = binding.bound() ? static_cast<int>(ProcessorCount(hello.cores)) : 0;
  if (job_.options.report_bindings && facts.restarts == 0) {
    for (const std::string& line : BindingReport(binding, hello.cores, host.rank_count)) {
      output_->Say(Format("{}, counted from rank {} on: {}", host.host, host.first_rank, line));
    }
  }
  StartOrder order;
  order.folder = job_.folder;
  order.command = job_.options.command;
  std::transform(secret_.key.begin(), secret_.key.end(), order.secret.begin(),
                 [](std::byte byte) { return std::to_integer<std::uint8_t>(byte); });
  if (job_.shared_secret) order.secret.fill(0);  // nothing secret goes over a network
  order.has_secret = !job_.shared_secret;
  order.job_id = facts.job_id;
  const EnvBlock first = EnvironmentOf(job_, host.first_rank, facts);
  order.environment = first.entries();
  for (int local = 0; local < host.rank_count; ++local) {
    const int rank = host.first_rank + local;
    order.ranks.push_back(
        {.rank = rank,
         .settings = Missing(first.entries(), EnvironmentOf(job_, rank, facts).entries()),
         .processors =
             binding.bound() ? binding.by_rank[static_cast<std::size_t>(local)] : Processors(),
         .shown = job_.options.shown.Contains(rank)});
  }
  return order;
}

/// False when the job has to end before. A rank that fails early is no reason: the others' hosts
/// know of it as soon as they have started.
bool Runner::Await(const std::function<bool()>& condition) {
  while (!condition()) {
    const EndCause cause = supervision_->cause();
    const bool goes_on = cause == EndCause::kNone || cause == EndCause::kFailure;
    if (!goes_on || supervision_->phase() == Supervision::Phase::kDone) return false;
    Step();
  }
  return true;
}

Refusal Runner::Interrupted() const {
  const JobEnd end = Summarize();
  if (end.cause == EndCause::kFailure) return {};  // told like any failure
  if (end.cause == EndCause::kDeserted) return {kExitLauncherError, "the front process is gone"};
  return {ExitCode(end), StopSummary(end).front()};
}

/// When everything is over: sees the starters off.
void Runner::LeaveHosts() {
  if (agents_ == nullptr) return;
  while (!agents_->gone()) {
    Dispatch(poller_->Wait(agents_->deadline()));
    agents_->OnTime(SteadyClock().Now());
    agents_->FinishRound();
  }
  EndDescendants(kLocalSweepLimit);
}

/// What is wrong with hosts beyond what their ranks' ends tell.
void Runner::ReportHosts(std::string_view told) {
  for (const AgentLink* link : members_) {
    if (link->state() == State::kLost && link->trouble() != told) {
      output_->Say(Format("host {} was lost: {}", link->host(), link->trouble()));
    }
  }
}

}  // namespace hvl::launcher
