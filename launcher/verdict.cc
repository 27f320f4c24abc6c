#include "launcher/verdict.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <set>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "launcher/rank_report.h"
#include "launcher/seconds.h"

namespace hvl::launcher {
namespace {

// What stands before the lost rank: in the exception's text, and in the runtime's own log, which
// remains when a script catches the exception.
constexpr auto kLostPeerErrors =
    std::to_array<std::string_view>({"HorovodInternalError", "the session ends: Unavailable"});
constexpr std::size_t kShownLines = 12;

/// Ends that are failures of their own or follow from one; not those that hvlrun asked for.
std::vector<const RankEnd*> BadEnds(const JobEnd& job) {
  std::vector<const RankEnd*> bad;
  for (const RankEnd& end : job.ends) {
    if (!end.status.ok() && !end.asked_to_stop) bad.push_back(&end);
  }
  return bad;
}

const RankEnd* FindEnd(const std::vector<const RankEnd*>& ends, int rank) {
  for (const RankEnd* end : ends) {
    if (end->rank == rank) return end;
  }
  return nullptr;
}

std::string Memory(long kib) {
  if (kib >= 1 << 20) return Format("{:.1f} GiB", static_cast<double>(kib) / (1 << 20));
  return Format("{:.1f} MiB", static_cast<double>(kib) / 1024);
}

std::string HowItDied(const RankEnd& end, const Culprit& culprit) {
  if (end.status.lost)
    return Format("lost with its host {}: {}", culprit.host, culprit.lost_because);
  std::string text = Describe(end.status);
  if (end.status.signal == 0) return text;
  text += ", not sent by hvlrun";
  if (culprit.peak_memory_kib > 0) {
    text += Format("; peak memory {}", Memory(culprit.peak_memory_kib));
  }
  return text;
}

/// Where the sentence about a lost peer begins in this line; npos when there is none.
std::size_t FindLostPeerError(std::string_view line) {
  for (const std::string_view error : kLostPeerErrors) {
    if (const std::size_t at = line.find(error); at != std::string_view::npos) return at;
  }
  return std::string_view::npos;
}

/// What became of the ranks besides the first to fail, grouped: "ranks 0 and 2: stopped by hvlrun".
class Aftermath {
 public:
  Aftermath(const JobEnd& job, int culprit) : job_(job), culprit_(culprit) {
    for (const RankEnd& end : job_.ends) {
      if (end.rank != culprit_) Add(Fate(end), end.rank);
    }
  }

  std::string Text() const {
    std::string text;
    for (const auto& [fate, ranks] : fates_) {
      text += Format("{}{}: {}", text.empty() ? "" : "; ", RankList(ranks), fate);
    }
    return text;
  }

 private:
  std::string Fate(const RankEnd& end) const {
    const auto blamed = job_.blames.find(end.rank);
    const std::string lost =
        blamed == job_.blames.end() ? "" : Format(", lost rank {}", blamed->second);
    if (end.status.lost) return Describe(end.status);
    if (end.asked_to_stop && end.status.signal == SIGKILL) {
      return Format("killed by hvlrun, did not stop when asked{}", lost);
    }
    if (end.asked_to_stop) return Format("stopped by hvlrun{}", lost);
    if (end.status.ok()) return "ended well";
    return Format("{}{}", Describe(end.status), lost);
  }

  void Add(const std::string& fate, int rank) {
    for (auto& [known, ranks] : fates_) {
      if (known == fate) return ranks.push_back(rank);
    }
    fates_.push_back({fate, {rank}});
  }

  const JobEnd& job_;
  const int culprit_;
  std::vector<std::pair<std::string, std::vector<int>>> fates_;
};

/// Says what became of a rank that is blamed although it did not fail.
std::string AboutBlamed(const JobEnd& job, int blamed) {
  for (const RankEnd& end : job.ends) {
    if (end.rank != blamed) continue;
    if (end.asked_to_stop) return Format("it lost rank {}, which did not end by itself", blamed);
    if (end.status.ok()) {
      return Format("it lost rank {}, which had ended with exit code 0 {:.1f} s after the start",
                    blamed, Seconds(end.at - job.start));
    }
  }
  return "";
}

}  // namespace

std::optional<int> BlamedRank(const std::deque<std::string>& last_lines, int own, int rank_count) {
  constexpr std::string_view kRank = "rank ";
  for (auto line = last_lines.rbegin(); line != last_lines.rend(); ++line) {
    const std::size_t error = FindLostPeerError(*line);
    if (error == std::string::npos) continue;
    for (std::size_t at = line->find(kRank, error); at != std::string::npos;
         at = line->find(kRank, at + 1)) {
      int rank = 0;
      const char* begin = line->data() + at + kRank.size();
      const char* end = line->data() + line->size();
      if (std::from_chars(begin, end, rank).ec != std::errc()) continue;
      if (rank != own && rank >= 0 && rank < rank_count) return rank;
    }
  }
  return std::nullopt;
}

const RankEnd& RootCause(const JobEnd& job) {
  const std::vector<const RankEnd*> bad = BadEnds(job);
  HVL_CHECK(!bad.empty(), "a failed job has a rank that failed");
  const RankEnd* cause = bad.front();
  std::set<int> visited;
  while (visited.insert(cause->rank).second) {
    const auto blamed = job.blames.find(cause->rank);
    if (blamed == job.blames.end()) return *cause;
    const RankEnd* next = FindEnd(bad, blamed->second);
    if (next == nullptr) break;
    cause = next;
  }
  for (const RankEnd* end : bad) {
    if (!job.blames.contains(end->rank)) return *end;
  }
  return *cause;
}

std::optional<int> AwaitedRank(const JobEnd& so_far) {
  const std::vector<const RankEnd*> bad = BadEnds(so_far);
  std::set<int> visited;
  for (const RankEnd* at = bad.empty() ? nullptr : bad.front();
       at != nullptr && visited.insert(at->rank).second;) {
    const auto blamed = so_far.blames.find(at->rank);
    if (blamed == so_far.blames.end()) return std::nullopt;
    const auto is_blamed = [&](const RankEnd& end) { return end.rank == blamed->second; };
    if (std::none_of(so_far.ends.begin(), so_far.ends.end(), is_blamed)) return blamed->second;
    at = FindEnd(bad, blamed->second);
  }
  return std::nullopt;
}

int ExitCode(const JobEnd& job) {
  switch (job.cause) {
    case EndCause::kNone:
      return 0;
    case EndCause::kFailure:
      return RootCause(job).status.shell_code();
    case EndCause::kSignal:
      return 128 + job.stop_signal;
    case EndCause::kTimeout:
      return kExitTimeout;
    case EndCause::kDeserted:
    case EndCause::kLaunch:
      return kExitLauncherError;
  }
  return kExitLauncherError;
}

std::vector<std::string> FailureSummary(const JobEnd& job, const Culprit& culprit) {
  const RankEnd& root = RootCause(job);
  std::vector<std::string> lines;
  lines.push_back(Format(
      "job {} failed after {:.1f} s; first to fail: rank {} of {} (pid {} on {})", job.job_id,
      Seconds(root.at - job.start), root.rank, job.rank_count, culprit.pid, culprit.host));
  lines.push_back(Format("  {}", HowItDied(root, culprit)));
  if (root.status.signal == SIGKILL && !culprit.memory_hint.empty()) {
    lines.push_back(Format("  {}", culprit.memory_hint));
  }
  for (const std::string& line : {OwnError(culprit.report), LastOperation(culprit.report)}) {
    if (!line.empty()) lines.push_back(Format("  {}", line));
  }
  if (const auto blamed = job.blames.find(root.rank); blamed != job.blames.end()) {
    const std::string about = AboutBlamed(job, blamed->second);
    if (!about.empty()) lines.push_back(Format("  {}", about));
  }
  if (!culprit.last_lines.empty()) {
    lines.emplace_back("  its last lines on stderr:");
    const std::size_t skipped =
        culprit.last_lines.size() - std::min(culprit.last_lines.size(), kShownLines);
    for (std::size_t i = skipped; i < culprit.last_lines.size(); ++i) {
      lines.push_back(Format("  | {}", culprit.last_lines[i]));
    }
  }
  const std::string others = Aftermath(job, root.rank).Text();
  if (!others.empty()) lines.push_back(Format("then {}", others));
  const std::string logs =
      culprit.log_folder.empty() ? "" : Format("; its output is in {}", culprit.log_folder);
  lines.push_back(Format("exit code {}{}", ExitCode(job), logs));
  return lines;
}

std::vector<std::string> StopSummary(const JobEnd& job,
                                     const std::map<int, StatusReport>& reports) {
  const std::string why = job.cause == EndCause::kTimeout
                              ? "the time of --timeout was over"
                              : Format("stopped by {}", SignalName(job.stop_signal));
  std::vector<int> killed;
  for (const RankEnd& end : job.ends) {
    if (end.asked_to_stop && end.status.signal == SIGKILL) killed.push_back(end.rank);
  }
  std::string how = "all ranks ended when asked";
  if (job.ends.empty()) how = "its ranks had not been started";
  if (!killed.empty()) {
    how = Format("{} did not end when asked and {} killed", RankList(killed),
                 killed.size() == 1 ? "was" : "were");
  }
  std::vector<std::string> lines = {Format("job {}: {}; {}, {:.1f} s after the start; exit code {}",
                                           job.job_id, why, how, Seconds(job.end - job.start),
                                           ExitCode(job))};
  if (job.cause != EndCause::kTimeout && !LooksStalled(reports)) return lines;
  const std::vector<std::string> did = WhatRanksDid(reports);
  if (!did.empty()) lines.emplace_back("what the ranks were doing then:");
  lines.insert(lines.end(), did.begin(), did.end());
  return lines;
}

std::string RankList(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    parts.push_back(last >= i + 2 ? Format("{}-{}", ranks[i], ranks[last])
                                  : Format("{}", ranks[i]));
    i = last >= i + 2 ? last + 1 : i + 1;
  }
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += i + 1 == parts.size() ? " and " : ", ";
    text += parts[i];
  }
  return text;
}

}  // namespace hvl::launcher
