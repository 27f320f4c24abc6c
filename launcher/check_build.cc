#include "launcher/check_build.h"

#include <sys/utsname.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "csrc/base/str.h"
#include "launcher/command.h"
#include "launcher/python_facts.h"

namespace hvl::launcher {
namespace {

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

/// Plug-ins lie beside the folder of this program, as pip installs them.
bool HasMpiPlugin() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path folder = program.parent_path().parent_path() / "plugins";
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().filename().string().starts_with("libhvl_mpi_")) return true;
  }
  return false;
}

}  // namespace

BuildFacts CollectBuildFacts(const EnvBlock& environment) {
  BuildFacts facts;
  std::string python;
  if (FindProgram("python3", environment.Get("PATH").value_or(""), &python).exit_code == 0) {
    const PythonFacts packages = AskPython(python);
    facts.python = python;
    facts.torch_version = packages.torch;
    facts.has_horovodlite = !packages.horovodlite.empty();
  }
  facts.sections = {
      {"Available Frameworks",
       {{"TensorFlow", false}, {"PyTorch", !facts.torch_version.empty()}, {"MXNet", false}}},
      {"Available Controllers", {{"horovodlite", true}, {"MPI", HasMpiPlugin()}, {"Gloo", false}}},
      {"Available Tensor Operations",
       {{"local (shared memory)", true},
        {"TCP", true},
        {"NCCL", false},
        {"DDL", false},
        {"CCL", false},
        {"MPI", HasMpiPlugin()},
        {"Gloo", false}}}};
  utsname system{};
  ::uname(&system);
  facts.compiler = __VERSION__;
  facts.system = Format("{} {} {}", system.sysname, system.release, system.machine);
  facts.processor_features = ProcessorFeatures();
  return facts;
}

std::string BuildText(const BuildFacts& facts) {
  std::string text = Format("horovodlite v{}:\n", HVL_VERSION);
  for (const BuildFacts::Section& section : facts.sections) {
    text += Format("\n{}:\n", section.title);
    for (const BuildFacts::Feature& feature : section.features) {
      const bool torch = feature.name == "PyTorch" && feature.available;
      text += Format("    {} {}{}\n", feature.available ? "[X]" : "[ ]", feature.name,
                     torch ? " " + facts.torch_version : "");
    }
  }
  text += Format("\nVersions:\n    compiler {}; {}\n", facts.compiler, facts.system);
  text += Format("    processor features: {}\n", facts.processor_features);
  text += Format("    python3: {}; horovodlite there: {}\n",
                 facts.python.empty() ? "not found in PATH" : facts.python,
                 facts.has_horovodlite ? "yes" : "no");
  return text;
}

std::string BuildJson(const BuildFacts& facts) {
  nlohmann::ordered_json json;
  json["version"] = HVL_VERSION;
  for (const BuildFacts::Section& section : facts.sections) {
    for (const BuildFacts::Feature& feature : section.features) {
      json[section.title][feature.name] = feature.available;
    }
  }
  json["compiler"] = facts.compiler;
  json["system"] = facts.system;
  json["processor features"] = facts.processor_features;
  json["python3"] = facts.python;
  json["torch"] = facts.torch_version;
  json["horovodlite"] = facts.has_horovodlite;
  // What the system says need not be UTF-8.
  using Json = nlohmann::ordered_json;
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace hvl::launcher
