#include "launcher/report.h"

#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <vector>

#include "csrc/base/str.h"
#include "launcher/command.h"

namespace hvl::launcher {
namespace {

/// As one could type it into a shell.
std::string ShellWord(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,@%+";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  quoted += '\'';
  return quoted;
}

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

std::string Mark(bool available) { return available ? "[X]" : "[ ]"; }

/// The first line that a program prints, or "" when it cannot be run or fails.
std::string FirstLine(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), &::pclose);
  std::array<char, 256> line{};
  if (pipe == nullptr || std::fgets(line.data(), line.size(), pipe.get()) == nullptr) return "";
  std::string text(line.data());
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

/// The version of torch as the package's metadata has it; importing it would take seconds.
std::string TorchVersion(const std::string& python) {
  return FirstLine(ShellWord(python) +
                   " -c 'import importlib.metadata as m; print(m.version(\"torch\"))' 2>/dev/null");
}

std::string ProcessorFeatures() {
  std::string features;
  const auto add = [&features](bool has, const char* name) {
    if (has) features += Format("{}{}", features.empty() ? "" : " ", name);
  };
#if defined(__x86_64__)
  add(__builtin_cpu_supports("sse4.2") != 0, "sse4.2");
  add(__builtin_cpu_supports("avx2") != 0, "avx2");
  add(__builtin_cpu_supports("fma") != 0, "fma");
  add(__builtin_cpu_supports("avx512f") != 0, "avx512f");
  add(__builtin_cpu_supports("avx512bw") != 0, "avx512bw");
#elif defined(__aarch64__)
  add(true, "neon");
#endif
  return features.empty() ? "none that is used" : features;
}

}  // namespace

std::string DryRun(const Job& job) {
  const JobFacts facts{.job_id = "(made at the start)",
                       .store_address = "(made at the start)",
                       .secret_fd = "(made at the start)",
                       .master_address = "127.0.0.1",
                       .master_port = "(a free port)",
                       .processor_count = job.processor_count,
                       .columns = "",
                       .lines = ""};
  std::string text = Format("command: {}\nprogram: {}\nranks: {}, on {} processors\n\n",
                            ShellCommand(job.options.command), job.program, job.options.num_proc,
                            job.processor_count);
  text += Format("{:>6}  {:<24}  {:>10}  {:>10}\n", "rank", "host", "local", "cross");
  for (const RankPlace& place : job.places) {
    text += Format("{:>6}  {:<24}  {:>10}  {:>10}\n", place.rank, place.host,
                   Format("{}/{}", place.local_rank, place.local_size),
                   Format("{}/{}", place.cross_rank, place.cross_size));
  }
  const EnvBlock first = EnvironmentOf(job, 0, facts);
  text += "\nenvironment of rank 0, besides what is inherited:\n";
  for (const std::string& entry : Added(job.inherited, first)) text += Format("  {}\n", entry);
  for (std::size_t rank = 1; rank < job.places.size(); ++rank) {
    const EnvBlock env = EnvironmentOf(job, static_cast<int>(rank), facts);
    text += Format("rank {} differs in:", rank);
    for (const std::string& entry : Added(first, env)) text += Format(" {}", entry);
    text += '\n';
  }
  return text;
}

std::string CheckBuild(const EnvBlock& environment) {
  std::string python;
  const bool has_python =
      FindProgram("python3", environment.Get("PATH").value_or(""), &python).exit_code == 0;
  const std::string torch = has_python ? TorchVersion(python) : "";
  std::string text = Format("horovodlite v{}:\n", HVL_VERSION);
  const auto section = [&text](const char* title) { text += Format("\n{}:\n", title); };
  const auto row = [&text](bool available, const std::string& name) {
    text += Format("    {} {}\n", Mark(available), name);
  };
  section("Available Frameworks");
  row(false, "TensorFlow");
  row(!torch.empty(), torch.empty() ? "PyTorch" : Format("PyTorch {}", torch));
  row(false, "MXNet");
  section("Available Controllers");
  row(true, "horovodlite");
  row(false, "MPI");
  row(false, "Gloo");
  section("Available Tensor Operations");
  row(true, "local (shared memory)");
  row(true, "TCP");
  row(false, "NCCL");
  row(false, "DDL");
  row(false, "CCL");
  row(false, "MPI");
  row(false, "Gloo");
  utsname system{};
  ::uname(&system);
  section("Versions");
  text += Format("    compiler {}; {} {} {}\n", __VERSION__, system.sysname, system.release,
                 system.machine);
  text += Format("    processor features: {}\n", ProcessorFeatures());
  text += Format("    python3: {}\n", has_python ? python : "not found in PATH");
  return text;
}

}  // namespace hvl::launcher
