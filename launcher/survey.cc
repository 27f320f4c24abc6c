#include "launcher/survey.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>

#include "csrc/base/str.h"
#include "launcher/agents.h"
#include "launcher/seconds.h"

namespace hvl::launcher {
namespace {

using Level = Finding::Level;
using State = AgentLink::State;

// A host whose interpreter lies on a slow file system needs time to tell its versions.
constexpr Duration kExamineLimit = std::chrono::seconds(60);
// Lines of logs and events of timelines of two hosts cannot be put in order any more.
constexpr Duration kClockLimit = std::chrono::milliseconds(500);

/// Nothing is started, so nothing is heard.
class NoRanks final : public RankListener {
 public:
  void RankWrote(int, bool, std::string_view) override {}
  void StreamEnded(int, bool) override {}
  void RankEnded(const RankExit&) override {}
  void LeftoverEnded() override {}
  void LeftoverSignalled(const OtherProcess&) override {}
};

ExamineOrder OrderFor(const Job& job, const HostRanks& host) {
  ExamineOrder order;
  order.folder = job.folder;
  order.command = job.options.command;
  order.environment = EnvironmentOf(job, host.first_rank, {}).entries();
  order.rank_count = host.rank_count;
  return order;
}

HostReport ReportOf(const AgentLink& link) {
  HostReport report;
  report.host = link.host();
  report.version = link.hello().version;
  report.answered = !report.version.empty();
  report.cores = link.hello().cores.size();
  report.clock_ahead = link.clock_ahead();
  report.findings = link.examined().findings;
  if (link.state() == State::kLost) {
    report.findings.push_back({Level::kFail, "agent", link.trouble(),
                               "ssh -o BatchMode=yes must work without a question, and hvlrun must "
                               "be at the same path there (else --remote-hvlrun)"});
  }
  return report;
}

std::string Verdict(const HostReport& report) {
  std::size_t failures = 0;
  std::size_t warnings = 0;
  for (const Finding& finding : report.findings) {
    if (finding.level == Level::kFail) ++failures;
    if (finding.level == Level::kWarn) ++warnings;
  }
  if (!report.answered) return "does not answer";
  if (failures > 0) return "cannot run the job";
  if (warnings == 0) return "ok";
  return Format("ok; {} could be better", warnings);
}

}  // namespace

Result<std::vector<HostReport>> SurveyHosts(const Job& job) {
  sigset_t children;
  sigemptyset(&children);
  sigaddset(&children, SIGCHLD);
  ::pthread_sigmask(SIG_BLOCK, &children, nullptr);
  ::signal(SIGCHLD, SIG_DFL);
  ::signal(SIGPIPE, SIG_IGN);
  HVL_ASSIGN_OR_RETURN(Poller poller, Poller::Create());
  NoRanks nobody;
  Agents agents(&poller, &nobody, {}, [](int) {});
  HVL_RETURN_IF_ERROR(agents.Open());
  agents.set_starter_env(job.inherited);
  for (const HostRanks& host : job.hosts) {
    HVL_ASSIGN_OR_RETURN(Starter starter, StarterOf(job, host));
    agents.Add(host.host, std::move(starter));
  }
  std::vector<HostReport> reports(job.hosts.size());
  std::vector<std::optional<TimePoint>> asked(job.hosts.size());
  while (!agents.gone()) {
    agents.FinishRound();
    const TimePoint now = SteadyClock().Now();
    for (std::size_t i = 0; i < reports.size(); ++i) {
      AgentLink* link = agents.links()[i].get();
      if (link->state() == State::kReady) {
        link->Order(OrderFor(job, job.hosts[i]));
        asked[i] = now;
      }
      if (link->state() == State::kOrdered && now - *asked[i] > kExamineLimit) {
        link->Fail(Format("no answer within {:.0f} s", Seconds(kExamineLimit)));
      }
      if (link->state() == State::kExamined || link->state() == State::kLost) {
        if (reports[i].host.empty()) reports[i] = ReportOf(*link);
        link->Dismiss();
      }
    }
    if (agents.gone()) break;
    for (const Token& token : poller.Wait(agents.deadline())) agents.OnReady(token);
    agents.FinishReady();
    agents.OnTime(SteadyClock().Now());
  }
  Compare(&reports);
  return reports;
}

void Compare(std::vector<HostReport>* reports) {
  for (HostReport& report : *reports) {
    if (!report.answered) continue;
    if (report.version != HVL_VERSION) {
      report.findings.push_back({Level::kFail, "version",
                                 Format("hvlrun {}, and here {}", report.version, HVL_VERSION),
                                 "install the same version of horovodlite on all hosts"});
    }
    const Duration off =
        report.clock_ahead < Duration::zero() ? -report.clock_ahead : report.clock_ahead;
    if (off > kClockLimit) {
      report.findings.push_back(
          {Level::kWarn, "clock",
           Format("{:.1f} s {} this machine's", Seconds(off),
                  report.clock_ahead < Duration::zero() ? "behind" : "before"),
           "let both follow one time server (chronyd)"});
    }
  }
}

bool HasFailure(const std::vector<HostReport>& reports) {
  return std::any_of(reports.begin(), reports.end(),
                     [](const HostReport& report) { return HasFailure(report.findings); });
}

std::string SurveyText(const std::vector<HostReport>& reports, bool all) {
  std::size_t width = std::string_view("host").size();
  for (const HostReport& report : reports) width = std::max(width, report.host.size());
  std::string text = Format("{:<{}}  {:<9}  {:>5}  {:>10}  {}\n", "host", width, "version", "cores",
                            "clock", "result");
  for (const HostReport& report : reports) {
    text += report.answered
                ? Format("{:<{}}  {:<9}  {:>5}  {:>+8.3f} s  {}\n", report.host, width,
                         report.version, report.cores, Seconds(report.clock_ahead), Verdict(report))
                : Format("{:<{}}  {:<9}  {:>5}  {:>10}  {}\n", report.host, width, "-", "-", "-",
                         Verdict(report));
  }
  for (const HostReport& report : reports) {
    std::string findings;
    for (const Finding& finding : report.findings) {
      if (all || finding.level != Level::kOk) findings += FindingText(finding);
    }
    if (!findings.empty()) text += Format("\n{}:\n{}", report.host, findings);
  }
  return text + (HasFailure(reports) ? "\nNot all of these hosts can run such a job.\n"
                                     : "\nJobs run on these hosts.\n");
}

std::string SurveyJson(const std::vector<HostReport>& reports) {
  using Json = nlohmann::ordered_json;
  Json json;
  json["fit"] = !HasFailure(reports);
  json["hosts"] = Json::array();
  for (const HostReport& report : reports) {
    Json host = {{"host", report.host},
                 {"answered", report.answered},
                 {"version", report.version},
                 {"cores", report.cores},
                 {"clock_ahead_seconds", Seconds(report.clock_ahead)}};
    host["findings"] = Json::parse(DoctorJson(report.findings))["findings"];
    json["hosts"].push_back(std::move(host));
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace hvl::launcher
