#include "launcher/report.h"

#include <algorithm>
#include <vector>

#include "csrc/base/str.h"
#include "launcher/shell_word.h"

namespace hvl::launcher {
namespace {

std::string ShellCommand(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += ' ';
    text += ShellWord(word);
  }
  return text;
}

/// Entries of `env` that `base` does not have, in their order.
std::vector<std::string> Added(const EnvBlock& base, const EnvBlock& env) {
  std::vector<std::string> added;
  for (const std::string& entry : env.entries()) {
    const std::vector<std::string>& known = base.entries();
    if (std::find(known.begin(), known.end(), entry) == known.end()) added.push_back(entry);
  }
  return added;
}

/// How each host is reached, or what this machine has.
std::string WhereText(const Job& job) {
  std::string text;
  if (job.hosts.empty()) {
    for (const std::string& line : BindingReport(job.binding, job.cores, job.options.num_proc)) {
      text += line + '\n';
    }
    return text;
  }
  if (job.shared_secret) return "agents come by themselves (hvlrun --join)\n";
  text += "agents, to whose standard input everything else goes:\n";
  for (const HostRanks& host : job.hosts) {
    const Result<Starter> starter = StarterOf(job, host);
    text += Format("{}: {}\n", host.host,
                   starter.ok() ? ShellCommand(starter->arguments) : starter.status().message());
  }
  return text;
}

}  // namespace

std::string DryRun(const Job& job) {
  const bool here = job.hosts.empty();
  const JobFacts facts{.job_id = "(made at the start)",
                       .store_address = "(made at the start)",
                       .secret_fd = "(made at the start)",
                       .master_address = here ? "127.0.0.1" : "(of rank 0)",
                       .master_port = "(a free port)",
                       .threads_per_rank = job.binding.threads_per_rank,
                       .bound_processors = BoundProcessors(job),
                       .columns = "",
                       .lines = ""};
  std::string text = Format("command: {}\n", ShellCommand(job.options.command));
  if (here) {
    text += Format("program: {}\nranks: {}, on {} cores\n\n", job.program, job.options.num_proc,
                   job.cores.size());
  } else {
    text += Format("ranks: {}, on {} hosts\n\n", job.options.num_proc, job.hosts.size());
  }
  text += Format("{:>6}  {:<24}  {:>10}  {:>10}\n", "rank", "host", "local", "cross");
  for (const RankPlace& place : job.places) {
    text += Format("{:>6}  {:<24}  {:>10}  {:>10}\n", place.rank, place.host,
                   Format("{}/{}", place.local_rank, place.local_size),
                   Format("{}/{}", place.cross_rank, place.cross_size));
  }
  text += '\n';
  text += WhereText(job);
  const EnvBlock first = EnvironmentOf(job, 0, facts);
  text += "\nenvironment of rank 0, besides what is inherited:\n";
  for (const std::string& entry : Added(job.base, first)) text += Format("  {}\n", entry);
  for (std::size_t rank = 1; rank < job.places.size(); ++rank) {
    const EnvBlock env = EnvironmentOf(job, static_cast<int>(rank), facts);
    text += Format("rank {} differs in:", rank);
    for (const std::string& entry : Added(first, env)) text += Format(" {}", entry);
    text += '\n';
  }
  return text;
}

}  // namespace hvl::launcher
