#include "launcher/rank_report.h"

#include <algorithm>
#include <utility>

#include "csrc/base/str.h"
#include "horovodlite/types.h"
#include "launcher/verdict.h"

namespace hvl::launcher {
namespace {

constexpr std::size_t kMaxActivities = 12;
// Nobody looks at a step that is slower than this and thinks nothing of it.
constexpr std::int64_t kStallNs = 10'000'000'000;

std::string SecondsText(std::int64_t nanoseconds) {
  return Format("{:.1f} s", static_cast<double>(nanoseconds) / 1e9);
}

std::string SizeText(std::uint64_t bytes) {
  constexpr std::uint64_t kKiB = 1024, kMiB = kKiB * 1024, kGiB = kMiB * 1024;
  const auto in = [bytes](std::uint64_t unit) {
    return static_cast<double>(bytes) / static_cast<double>(unit);
  };
  if (bytes >= kGiB) return Format("{:.1f} GiB", in(kGiB));
  if (bytes >= kMiB) return Format("{:.1f} MiB", in(kMiB));
  if (bytes >= kKiB) return Format("{:.1f} KiB", in(kKiB));
  return Format("{} bytes", bytes);
}

/// "allreduce 'w' and 3 more".
std::string Name(const OperationReport& operation, std::uint64_t more) {
  std::string text = operation.kind.empty() ? "operation" : operation.kind;
  if (!operation.name.empty()) text += Format(" '{}'", operation.name);
  if (more > 0) text += Format(" and {} more", more);
  return text;
}

std::string Name(const OperationReport& operation) {
  return Name(operation, operation.operations > 1 ? operation.operations - 1 : 0);
}

/// "allreduce 'w' and 3 more (batch 7, 64.0 MiB; plan 1, step 3, bucket 2 of 5)".
std::string InFull(const OperationReport& operation) {
  std::string about = Format("batch {}", operation.sequence);
  if (operation.bytes > 0) about += ", " + SizeText(operation.bytes);
  if (operation.process_set >= kFirstPairSet) {
    about += ", of a pair of ranks";
  } else if (operation.process_set != 0) {
    about += Format(", process set {}", operation.process_set);
  }
  if (operation.plan != 0) {
    about += Format("; plan {}, step {}, bucket {} of {}", operation.plan, operation.step,
                    operation.bucket, operation.buckets);
  }
  return Format("{} ({})", Name(operation), about);
}

/// The session lives, or has ended only because the job is being stopped: ranks do not hear of that
/// at the same moment.
bool LivesUntilNow(const StatusReport& report) {
  constexpr std::int64_t kStopNs = 3'000'000'000;
  if (report.phase == RankPhase::kRunning) return true;
  return report.phase > RankPhase::kRunning && report.phase_age_ns >= 0 &&
         report.phase_age_ns < kStopNs;
}

/// What a rank does, without times, and for how long.
struct Activity {
  std::string text;
  std::int64_t age_ns = -1;
};

Activity ActivityIn(const StatusReport& report) {
  if (report.at_gate) {
    return {Format("{} waits for the other ranks to start it", InFull(report.started)),
            report.started.age_ns};
  }
  if (report.is_running) return {Format("{} runs", InFull(report.started)), report.started.age_ns};
  if (report.in_flight == 0) return {"no operation in flight", report.beat_age_ns};
  return {Format("{} submitted, not started", Name(report.submitted, report.in_flight - 1)),
          report.submitted.age_ns};
}

Activity ActivityOf(const StatusReport& report) {
  if (LivesUntilNow(report)) return ActivityIn(report);
  switch (report.phase) {
    case RankPhase::kNone:
      return {"before init()"};
    case RankPhase::kJoining:
      return {report.text.empty() ? "in init()" : Format("init() has failed: {}", report.text)};
    case RankPhase::kFinished:
      return {"after shutdown()"};
    case RankPhase::kLocalError:
    case RankPhase::kPeerLost:
    case RankPhase::kPeerLeft:
    case RankPhase::kRunning:
      break;
  }
  return {Format("its session had ended: {}", report.text)};
}

bool HasRuntime(const StatusReport& report) { return report.phase != RankPhase::kNone; }

bool Waits(const StatusReport& report) {
  return LivesUntilNow(report) && (report.is_running || report.in_flight > 0);
}

}  // namespace

std::optional<int> BlamedBy(const StatusReport& report, const std::deque<std::string>& last_lines,
                            int own, int rank_count) {
  switch (report.phase) {
    case RankPhase::kNone:
    case RankPhase::kJoining:
      return BlamedRank(last_lines, own, rank_count);
    case RankPhase::kRunning:
    case RankPhase::kFinished:
      // An operation may have failed by another rank's fault in a session that lives on.
      if (report.named_peer) return BlamedRank(last_lines, own, rank_count);
      return std::nullopt;
    case RankPhase::kLocalError:
      return std::nullopt;
    case RankPhase::kPeerLost:
    case RankPhase::kPeerLeft:
      break;
  }
  const bool is_peer = report.peer >= 0 && report.peer < rank_count && report.peer != own;
  return is_peer ? std::optional(report.peer) : std::nullopt;
}

std::string LastOperation(const StatusReport& report) {
  if (!HasRuntime(report)) return "";
  std::string text = "last op: ";
  if (report.is_running) {
    text += InFull(report.started);
    text += report.at_gate ? ", waiting for the other ranks to start it" : ", running";
    if (report.started.age_ns >= 0) text += Format(" for {}", SecondsText(report.started.age_ns));
  } else if (!report.completed.kind.empty()) {
    text += Format("{}, done", InFull(report.completed));
  } else {
    text += "none";
  }
  if (report.phase == RankPhase::kJoining) text += ", in init()";
  if (!report.is_running && report.in_flight > 0) {
    text += Format("; {} submitted, not started", Name(report.submitted, report.in_flight - 1));
  }
  if (report.beat_age_ns < 0) return text;
  // Who has nothing to do sleeps, and rightly gives no sign of life.
  const bool idle = report.phase == RankPhase::kRunning && !Waits(report);
  return text + Format("; {} {} before", idle ? "nothing in flight, last heartbeat" : "heartbeat",
                       SecondsText(report.beat_age_ns));
}

std::string OwnError(const StatusReport& report) {
  if (report.phase == RankPhase::kLocalError) return Format("its runtime failed: {}", report.text);
  if (report.phase == RankPhase::kJoining && !report.text.empty()) {
    return Format("init() failed: {}", report.text);
  }
  return "";
}

std::vector<std::string> WhatRanksDid(const std::map<int, StatusReport>& reports) {
  const bool any = std::any_of(reports.begin(), reports.end(),
                               [](const auto& entry) { return HasRuntime(entry.second); });
  if (!any) return {};
  struct Group {
    Activity activity;
    std::vector<int> ranks;
  };
  std::vector<Group> groups;
  for (const auto& [rank, report] : reports) {
    Activity activity = ActivityOf(report);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& other) {
      return other.activity.text == activity.text;
    });
    if (group == groups.end()) {
      groups.push_back({std::move(activity), {rank}});
    } else {
      group->ranks.push_back(rank);
      group->activity.age_ns = std::max(group->activity.age_ns, activity.age_ns);
    }
  }
  std::vector<std::string> lines;
  for (const Group& group : groups) {
    if (lines.size() == kMaxActivities) {
      lines.push_back(Format("  and {} other activities", groups.size() - kMaxActivities));
      break;
    }
    std::string line = Format("  {}: {}", RankList(group.ranks), group.activity.text);
    if (group.activity.age_ns >= 0) line += Format(", for {}", SecondsText(group.activity.age_ns));
    lines.push_back(std::move(line));
  }
  return lines;
}

bool LooksStalled(const std::map<int, StatusReport>& reports) {
  return std::any_of(reports.begin(), reports.end(), [](const auto& entry) {
    const StatusReport& report = entry.second;
    return Waits(report) && ActivityOf(report).age_ns >= kStallNs;
  });
}

}  // namespace hvl::launcher
