// A rank in a process of its own, for tests that kill it: net_peer <rank> <size> <store address>
// <secret fd> <unix|tcp> <behaviour>. It joins, tells rank 0 "here <pid>" and behaves:
//   serve    echoes frames until rank 0 has gone
//   exit     leaves with code 7 and without a goodbye
//   fork     has a child that keeps all its sockets open: tells rank 0 "child <pid>", then serves
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "csrc/base/str.h"
#include "csrc/net/mesh.h"
#include "csrc/net/secret.h"
#include "csrc/net/store.h"

namespace hvl::net {
namespace {

class Echo final : public MeshReceiver {
 public:
  explicit Echo(Mesh& mesh) : mesh_(mesh) {}
  void OnFrame(int peer, std::span<const std::byte> frame) override {
    if (peer == 0) mesh_.Send(peer, frame);
  }
  void OnPeerLost(int peer, const Status&) override { ended_ = ended_ || peer == 0; }
  bool ended() const { return ended_; }

 private:
  Mesh& mesh_;
  bool ended_ = false;
};

void Tell(Mesh& mesh, const std::string& text) {
  mesh.Send(0, std::as_bytes(std::span(text.data(), text.size())));
}

int Run(char** arguments) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // What a rank may need at most; far below the usual limit of 1024.
  const rlimit files{256, 256};
  ::setrlimit(RLIMIT_NOFILE, &files);
  MeshOptions options;
  options.rank = std::stoi(arguments[1]);
  options.size = std::stoi(arguments[2]);
  options.job_id = "job";
  options.tcp_only = std::string_view(arguments[5]) == "tcp";
  const std::string_view behaviour = arguments[6];
  const auto secret = Secret::FromFd(std::stoi(arguments[4]));
  if (!secret.ok()) return 2;
  options.secret = *secret;
  const auto store = OpenStore(arguments[3], *secret, "job");
  if (!store.ok()) return 3;
  auto joined = Mesh::Join(**store, options, Logger());
  if (!joined.ok()) {
    std::fprintf(stderr, "%s\n", joined.status().ToString().c_str());
    return 4;
  }
  Mesh& mesh = **joined;
  if (!options.tcp_only && !mesh.ExchangeFds(STDIN_FILENO).ok()) return 5;
  Tell(mesh, Format("here {}", ::getpid()));
  if (behaviour == "exit") ::_exit(7);
  if (behaviour == "fork") {
    const pid_t child = ::fork();
    if (child == 0) {
      for (;;) ::pause();
    }
    Tell(mesh, Format("child {}", child));
  }
  Echo echo(mesh);
  while (!echo.ended()) mesh.Poll(Duration::max(), echo);
  return 0;
}

}  // namespace
}  // namespace hvl::net

int main(int count, char** arguments) { return count == 7 ? hvl::net::Run(arguments) : 1; }
