// Whether a machine is fit for a job: facts in, findings with their cures out. Pure.
#pragma once

#include <string>
#include <vector>

#include "launcher/host_facts.h"

namespace hvl::launcher {

struct Finding {
  enum class Level : std::uint8_t { kOk, kWarn, kFail };
  Level level = Level::kOk;
  std::string topic;
  std::string text;
  std::string cure;  ///< "" with kOk

  bool operator==(const Finding&) const = default;
};

/// For `rank_count` ranks, each with `threads_per_rank` threads of computation. kFail is what no
/// job can do without; kWarn costs time, or ends some jobs.
std::vector<Finding> Examine(const HostFacts& facts, int rank_count, int threads_per_rank);

bool HasFailure(const std::vector<Finding>& findings);

/// "[warn] topic  text", and the cure on a line of its own.
std::string FindingText(const Finding& finding);
/// All of them, and what it comes to.
std::string DoctorText(const std::vector<Finding>& findings);
/// {"fit": true, "findings": [{"level": "ok", "topic": ..., "text": ..., "cure": ...}, ...]}
std::string DoctorJson(const std::vector<Finding>& findings);

}  // namespace hvl::launcher
