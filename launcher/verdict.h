// Which rank failed first and which others only followed; and the summary that says so. Pure.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/base/status_page.h"
#include "launcher/supervision.h"

namespace hvl::launcher {

/// The rank that these last words of rank `own` name as lost, if they end in the runtime's error
/// about a lost peer ("HorovodInternalError: ... rank 3 ...").
std::optional<int> BlamedRank(const std::deque<std::string>& last_lines, int own, int rank_count);

/// Everything known about a job's end.
struct JobEnd {
  std::string job_id;
  int rank_count = 1;
  TimePoint start{};
  TimePoint end{};
  EndCause cause = EndCause::kNone;
  int stop_signal = 0;        ///< of cause kSignal
  std::vector<RankEnd> ends;  ///< in the order in which they ended
  std::map<int, int> blames;  ///< rank -> the rank it reports as lost
};

/// What is shown of the rank that failed first.
struct Culprit {
  int pid = 0;
  std::string host;
  long peak_memory_kib = 0;
  std::string memory_hint;   ///< "" when nothing points at the out-of-memory killer
  std::string lost_because;  ///< what happened to its host, where that was lost
  StatusReport report = {};  ///< what its runtime said last
  std::deque<std::string> last_lines;
  std::string log_folder;
};

/// The end of the rank that failed first. Requires cause kFailure.
///
/// The first to end badly is not always the first to fail: a rank that stops because a peer is lost
/// may be gone while that peer is still falling. So: from the first bad end follow "lost rank N"
/// as long as N ended badly too; where that leads to a rank that blames nobody, it is the cause.
/// Otherwise it is the earliest that blames nobody; if all blame, the end of the chain.
const RankEnd& RootCause(const JobEnd& job);

/// While the job still ends: the rank that runs and is blamed by the first to end badly, over
/// however many ranks that have ended badly too. It may be the cause, and slow in ending.
std::optional<int> AwaitedRank(const JobEnd& so_far);

/// hvlrun's exit status for this job.
int ExitCode(const JobEnd& job);

/// Lines without the "hvlrun: " in front; empty when there is nothing to report.
std::vector<std::string> FailureSummary(const JobEnd& job, const Culprit& culprit);
/// For a job that was stopped by a signal or --timeout. `reports`: of the ranks, as they were then.
std::vector<std::string> StopSummary(const JobEnd& job,
                                     const std::map<int, StatusReport>& reports = {});

/// "rank 3", "ranks 0 and 2-5".
std::string RankList(std::vector<int> ranks);

}  // namespace hvl::launcher
