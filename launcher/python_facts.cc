#include "launcher/python_facts.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <sstream>

#include "csrc/base/str.h"
#include "launcher/shell_word.h"

namespace hvl::launcher {

PythonFacts AskPython(const std::string& path, const std::vector<EnvSetting>& settings) {
  // One line per answer. A package that is found but has no version is part of a source tree.
  constexpr std::string_view kQuestion =
      "import importlib.metadata as m, importlib.util as u, platform\n"
      "def version(name):\n"
      "  if not u.find_spec(name): return \"\"\n"
      "  try: return m.version(name)\n"
      "  except m.PackageNotFoundError: return \"?\"\n"
      "print(platform.python_version())\n"
      "for name in (\"torch\", \"numpy\", \"horovodlite\"): print(version(name))";
  std::string command;
  for (const EnvSetting& setting : settings) {
    const bool matters = setting.name == "LD_LIBRARY_PATH" || setting.name.starts_with("PYTHON");
    if (matters) command += Format("{}={} ", setting.name, ShellWord(setting.value));
  }
  command += Format("{} -c '{}' 2>/dev/null </dev/null", ShellWord(path), kQuestion);
  // The interpreter is the user's own, quoted. NOLINTNEXTLINE(bugprone-command-processor)
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), &::pclose);
  std::string answer;
  std::array<char, 256> part{};
  while (pipe != nullptr && std::fgets(part.data(), part.size(), pipe.get()) != nullptr) {
    answer += part.data();
  }
  PythonFacts facts{.path = path, .version = "", .torch = "", .numpy = "", .horovodlite = ""};
  std::istringstream lines(answer);
  for (std::string* fact : {&facts.version, &facts.torch, &facts.numpy, &facts.horovodlite}) {
    std::getline(lines, *fact);
  }
  return facts;
}

bool IsPython(std::string_view command) {
  std::string_view name = command.substr(command.rfind('/') + 1);
  if (!name.starts_with("python")) return false;
  name.remove_prefix(std::string_view("python").size());
  return std::all_of(name.begin(), name.end(),
                     [](char c) { return c == '.' || (c >= '0' && c <= '9'); });
}

}  // namespace hvl::launcher
