// Ranks as real processes, for tests that kill or stop some of them.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/net/secret.h"
#include "csrc/net/store.h"
#include "tests/support/worlds.h"

namespace hvl::test {

/// What a rank process tells the test, one line per message.
class Reporter {
 public:
  explicit Reporter(int fd) : fd_(fd) {}
  void Say(std::string line) const {
    line += '\n';
    if (::write(fd_, line.data(), line.size()) < 0) std::_Exit(3);
  }

 private:
  const int fd_;
};

/// A world of processes, each with the environment that a launcher gives. They are forked before
/// any thread exists here, and wait for the address of the store; so it works under ThreadSanitizer
/// as well.
class ProcessWorld {
 public:
  /// Each process runs `body(rank, session, reporter)` and exits with what it returns; 2 when its
  /// session does not start.
  template <typename Body>
  ProcessWorld(int size, const Knobs& knobs, const Body& body) {
    for (int rank = 0; rank < size; ++rank) {
      std::array<int, 2> down{}, up{};
      if (::pipe(down.data()) != 0 || ::pipe(up.data()) != 0) std::abort();
      const pid_t process = ::fork();
      if (process == 0) {
        ::close(down[1]);
        ::close(up[0]);
        for (const Rank& sibling : ranks_) {
          ::close(sibling.down);
          ::close(sibling.up);
        }
        RunChild(rank, size, knobs, down[0], Reporter(up[1]), body);
      }
      ::close(down[0]);
      ::close(up[1]);
      ranks_.push_back({process, down[1], up[0], {}, std::nullopt});
    }
    auto server = net::StoreServer::Start(secret_, "test", Logger());
    if (!server.ok()) std::abort();
    server_ = std::move(server).value();
    const std::string line = server_->address() + '\n';
    for (const Rank& rank : ranks_) {
      if (::write(rank.down, line.data(), line.size()) < 0) std::abort();
    }
  }
  ~ProcessWorld() {
    for (Rank& rank : ranks_) {
      if (!rank.exit_status) ::kill(rank.process, SIGKILL);
      AwaitExit(rank);
      ::close(rank.down);
      ::close(rank.up);
    }
  }
  ProcessWorld(const ProcessWorld&) = delete;
  ProcessWorld& operator=(const ProcessWorld&) = delete;

  void Signal(int rank, int signal) const { ::kill(At(rank).process, signal); }

  /// The next line that a rank says; empty when it has nothing more to say.
  std::string Listen(int rank) {
    Rank& speaker = At(rank);
    for (;;) {
      if (const std::size_t end = speaker.heard.find('\n'); end != std::string::npos) {
        std::string line = speaker.heard.substr(0, end);
        speaker.heard.erase(0, end + 1);
        return line;
      }
      std::array<char, 4096> bytes{};
      const ssize_t count = ::read(speaker.up, bytes.data(), bytes.size());
      if (count <= 0) return {};
      speaker.heard.append(bytes.data(), static_cast<std::size_t>(count));
    }
  }

  /// As waitpid reports it.
  int ExitStatus(int rank) { return AwaitExit(At(rank)); }

 private:
  struct Rank {
    pid_t process = 0;
    int down = -1, up = -1;
    std::string heard;
    std::optional<int> exit_status;
  };

  Rank& At(int rank) { return ranks_.at(static_cast<std::size_t>(rank)); }
  const Rank& At(int rank) const { return ranks_.at(static_cast<std::size_t>(rank)); }

  static int AwaitExit(Rank& rank) {
    if (!rank.exit_status) {
      int status = 0;
      ::waitpid(rank.process, &status, 0);
      rank.exit_status = status;
    }
    return *rank.exit_status;
  }

  template <typename Body>
  [[noreturn]] void RunChild(int rank, int size, const Knobs& knobs, int down,
                             const Reporter& reporter, const Body& body) {
    // A rank that hangs ends itself, by a signal that the test sees.
    ::alarm(static_cast<unsigned>(2 * kHangLimit.count()));
    std::string address;
    for (char next = 0; ::read(down, &next, 1) == 1 && next != '\n';) address += next;
    const auto secret_fd = secret_.ToSealedFd();
    if (!secret_fd.ok()) std::_Exit(2);
    const auto set = [](const std::string& name, const std::string& value) {
      ::setenv(name.c_str(), value.c_str(), 1);
    };
    for (const auto& [name, value] : knobs) set(name, value);
    set("HVL_RANK", std::to_string(rank));
    set("HVL_SIZE", std::to_string(size));
    set("HVL_STORE", address);
    set("HVL_JOB_ID", "test");
    set("HVL_SECRET_FD", std::to_string(secret_fd->get()));
    auto session = Session::Create();
    if (!session.ok()) {
      reporter.Say(session.status().ToString());
      std::_Exit(2);
    }
    const int status = body(rank, *session, reporter);
    session->reset();
    std::_Exit(status);
  }

  const net::Secret secret_ = net::Secret::Random();
  std::vector<Rank> ranks_;
  std::unique_ptr<net::StoreServer> server_;
};

}  // namespace hvl::test
