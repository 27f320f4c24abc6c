#include "launcher/starter.h"

#include <sstream>

#include "csrc/base/str.h"
#include "launcher/shell_word.h"

namespace hvl::launcher {
namespace {

// No questions, because nobody is there to answer; no terminal, because the stream is no text. A
// dead host is noticed by the agents' own beats long before ssh does.
constexpr std::string_view kSshOptions =
    "-T -x -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 "
    "-o ServerAliveCountMax=3 -o ClearAllForwardings=yes";
// One process beside whatever else runs in the allocation, with all that the node has; ranks share
// that out among themselves.
constexpr std::string_view kSrunOptions =
    "--nodes=1 --ntasks=1 --overlap --cpu-bind=none --mem=0 --kill-on-bad-exit=0 --quiet";

std::vector<std::string> WordsOf(std::string_view text) {
  std::istringstream in{std::string(text)};
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(std::move(word));
  return words;
}

std::string Target(std::string_view user, std::string_view host) {
  return user.empty() ? std::string(host) : Format("{}@{}", user, host);
}

}  // namespace

std::vector<std::string> StarterCommand(const StarterOptions& options, std::string_view user,
                                        std::string_view host) {
  std::vector<std::string> words = WordsOf(options.rsh);
  if (options.rsh == "srun") {
    for (std::string& word : WordsOf(kSrunOptions)) words.push_back(std::move(word));
    words.push_back(Format("--nodelist={}", host));
    words.push_back(options.remote_hvlrun);
    words.emplace_back("--agent");
    return words;
  }
  const std::string remote = ShellWord(options.remote_hvlrun);  // the other side has a shell
  if (options.rsh != "ssh") {
    words.push_back(Target(user, host));
    words.push_back(remote);
    words.emplace_back("--agent");
    return words;
  }
  for (std::string& word : WordsOf(kSshOptions)) words.push_back(std::move(word));
  if (options.ssh_accept_new) {
    words.emplace_back("-o");
    words.emplace_back("StrictHostKeyChecking=accept-new");
  }
  if (options.ssh_port) {
    words.emplace_back("-p");
    words.push_back(Format("{}", *options.ssh_port));
  }
  if (!options.ssh_identity_file.empty()) {
    words.emplace_back("-i");
    words.push_back(options.ssh_identity_file);
  }
  words.emplace_back("--");
  words.push_back(Target(user, host));
  words.push_back(Format("exec {} --agent", remote));
  return words;
}

}  // namespace hvl::launcher
