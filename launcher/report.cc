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

/// What a python3 has; without importing it, which would take seconds.
struct PythonPackages {
  std::string torch_version;  ///< "" = none
  bool horovodlite = false;
};

PythonPackages AskPython(const std::string& python) {
  constexpr std::string_view kQuestion =
      "import importlib.metadata as m, importlib.util as u\n"
      "print(m.version(\"torch\") if u.find_spec(\"torch\") else \"\")\n"
      "print(u.find_spec(\"horovodlite\") is not None)";
  const std::string command = Format("{} -c '{}' 2>/dev/null", ShellWord(python), kQuestion);
  // The interpreter is the user's own, quoted. NOLINTNEXTLINE(bugprone-command-processor)
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), &::pclose);
  std::string answer;
  std::array<char, 256> part{};
  while (pipe != nullptr && std::fgets(part.data(), part.size(), pipe.get()) != nullptr) {
    answer += part.data();
  }
  return {.torch_version = answer.substr(0, answer.find('\n')),
          .horovodlite = answer.find("\nTrue") != std::string::npos};
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
  const PythonPackages packages = has_python ? AskPython(python) : PythonPackages{};
  const std::string& torch = packages.torch_version;
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
  text += Format("    python3: {}; horovodlite there: {}\n",
                 has_python ? python : "not found in PATH", packages.horovodlite ? "yes" : "no");
  return text;
}

}  // namespace hvl::launcher
