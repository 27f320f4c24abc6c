// The command that reaches a host and starts an agent there. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hvl::launcher {

struct StarterOptions {
  /// --rsh: words of the program that is called with the host and the command behind them; "ssh"
  /// and "srun" mean those with the options that hvlrun knows for them.
  std::string rsh = "ssh";
  std::optional<int> ssh_port;
  std::string ssh_identity_file;
  bool ssh_accept_new = false;  ///< keys of hosts that nobody has logged in to yet
  std::string remote_hvlrun;    ///< path on the hosts
};

/// The words of the command; `host` is a name or address, `user` "" unless the list of hosts says
/// who logs in there. Nothing of the job is in it: that goes over the agent's standard input.
std::vector<std::string> StarterCommand(const StarterOptions& options, std::string_view user,
                                        std::string_view host);

}  // namespace hvl::launcher
