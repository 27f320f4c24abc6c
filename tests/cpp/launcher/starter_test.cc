// The commands that reach other hosts.
#include "launcher/starter.h"

#include <catch2/catch.hpp>

#include <algorithm>

namespace hvl::launcher {
namespace {

using Words = std::vector<std::string>;

StarterOptions Plain() {
  StarterOptions options;
  options.remote_hvlrun = "/opt/env/bin/hvlrun";
  return options;
}

bool Has(const Words& words, const Words& part) {
  return std::search(words.begin(), words.end(), part.begin(), part.end()) != words.end();
}

TEST_CASE("ssh asks nothing, has no terminal, and keeps the user's policy for host keys") {
  const Words words = StarterCommand(Plain(), "", "node2");
  CHECK(words.front() == "ssh");
  CHECK(Has(words, {"-T", "-x"}));
  CHECK(Has(words, {"-o", "BatchMode=yes"}));
  CHECK(Has(words, {"-o", "ConnectTimeout=10"}));
  CHECK(Has(words, {"--", "node2", "exec /opt/env/bin/hvlrun --agent"}));
  CHECK(words.back() == "exec /opt/env/bin/hvlrun --agent");
  for (const std::string& word : words) CHECK(word.find("StrictHostKey") == std::string::npos);
}

TEST_CASE("ssh's options come from hvlrun's") {
  StarterOptions options = Plain();
  options.ssh_port = 2222;
  options.ssh_identity_file = "/home/me/my key";
  options.ssh_accept_new = true;
  options.remote_hvlrun = "/opt/my env/hvlrun";
  const Words words = StarterCommand(options, "me", "2001:db8::1");
  CHECK(Has(words, {"-o", "StrictHostKeyChecking=accept-new", "-p", "2222", "-i", "/home/me/my key",
                    "--", "me@2001:db8::1", "exec '/opt/my env/hvlrun' --agent"}));
}

TEST_CASE("another program is called with the host and the command") {
  StarterOptions options = Plain();
  options.rsh = "kubexec.sh  --verbose";
  CHECK(StarterCommand(options, "", "worker-0") ==
        Words{"kubexec.sh", "--verbose", "worker-0", "/opt/env/bin/hvlrun", "--agent"});
}

TEST_CASE("srun starts one task on the node, beside whatever runs there") {
  StarterOptions options = Plain();
  options.rsh = "srun";
  const Words words = StarterCommand(options, "", "gpu07");
  CHECK(words.front() == "srun");
  CHECK(Has(words, {"--nodes=1", "--ntasks=1", "--overlap"}));
  CHECK(Has(words, {"--nodelist=gpu07", "/opt/env/bin/hvlrun", "--agent"}));
}

}  // namespace
}  // namespace hvl::launcher
