// Examines the hosts of a job before it starts: who answers, with which version and clock, and what
// their agents find.
#pragma once

#include <string>
#include <vector>

#include "launcher/doctor.h"
#include "launcher/job.h"

namespace hvl::launcher {

struct HostReport {
  std::string host;
  bool answered = false;
  std::string version;
  std::size_t cores = 0;
  Duration clock_ahead{};         ///< of this machine's; the way of a message is in it
  std::vector<Finding> findings;  ///< that the host cannot be reached is one

  bool operator==(const HostReport&) const = default;
};

/// Calls an agent on each host of the job, asks it, and lets it go. Blocks until all have answered
/// or are given up.
Result<std::vector<HostReport>> SurveyHosts(const Job& job);

/// What the head itself has to say about hosts: their versions and clocks. Added to the findings.
void Compare(std::vector<HostReport>* reports);

bool HasFailure(const std::vector<HostReport>& reports);

/// A table, and below it for each host what could be better; with `all` also what is well.
std::string SurveyText(const std::vector<HostReport>& reports, bool all);
/// {"fit": true, "hosts": [{"host": ..., "version": ..., "findings": [...]}, ...]}
std::string SurveyJson(const std::vector<HostReport>& reports);

}  // namespace hvl::launcher
