// Many ranks on one machine, each a process with a whole session: they start, run operations of all
// kinds, compare every result and stop. Fails when a result is wrong, when a rank has more than 64
// TCP sockets, or when a session leaves a descriptor behind. Prints what it took.
#include <dirent.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/str.h"
#include "csrc/config/config.h"
#include "csrc/net/secret.h"
#include "csrc/net/store.h"
#include "csrc/session/session_impl.h"
#include "tests/cpp/crowd/operations.h"
#include "tests/support/pretended_hosts.h"
#include "tests/support/worlds.h"

namespace hvl::test {
namespace {

constexpr int kMostTcpSockets = 64;
constexpr rlim_t kMostDescriptors = 8192;
constexpr int kAtOnce = 8;  // operations that a rank has submitted and not waited for
constexpr unsigned kGiveUpSeconds = 550;

struct Options {
  int ranks = 64;
  int operations = 1000;
  int hosts = 1;
};

// What a rank tells in the end, as it goes through the pipe.
struct Report {
  double start_seconds = 0;
  double run_seconds = 0;
  double stop_seconds = 0;
  int descriptors = 0;  // while it runs
  int tcp_sockets = 0;
  int leaked = 0;
  std::array<char, 200> complaint{};  // empty = all is well
};

struct Descriptors {
  int all = 0;
  int tcp = 0;
};

Descriptors CountDescriptors() {
  Descriptors count;
  DIR* const folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return count;
  while (const dirent* const entry = ::readdir(folder)) {
    if (entry->d_name[0] == '.') continue;
    const int fd = static_cast<int>(std::strtol(entry->d_name, nullptr, 10));
    if (fd == ::dirfd(folder)) continue;
    int domain = 0;
    socklen_t bytes = sizeof domain;
    ++count.all;
    if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && domain == AF_INET)
      ++count.tcp;
  }
  ::closedir(folder);
  return count;
}

double SecondsSince(TimePoint start) {
  return std::chrono::duration<double>(SteadyClock().Now() - start).count();
}

std::string RunOperations(Session& session, int operations) {
  std::vector<int> even_ranks;
  for (int rank = 0; rank < session.world().size; rank += 2) even_ranks.push_back(rank);
  const auto set = session.AddProcessSet(even_ranks);
  if (!set.ok()) return set.status().ToString();
  for (int first = 0; first < operations; first += kAtOnce) {
    std::vector<std::unique_ptr<CrowdOperation>> running;
    for (int number = first; number < std::min(first + kAtOnce, operations); ++number) {
      running.push_back(MakeCrowdOperation(number, session.world(), *set));
      if (const Status status = running.back()->Submit(session); !status.ok())
        return status.ToString();
    }
    for (const auto& operation : running) {
      if (std::string complaint = operation->Check(); !complaint.empty()) return complaint;
    }
  }
  // Nobody leaves while others still need him.
  Operation barrier;
  barrier.kind = OpKind::kBarrier;
  const Status status = session.Run(barrier);
  return status.ok() ? "" : Format("the last barrier: {}", status.message());
}

std::string RunSession(int rank, const Options& options, const std::string& address,
                       const net::Secret& secret, Report& report) {
  const auto store = net::OpenStore(address, secret, "crowd");
  if (!store.ok()) return store.status().ToString();
  const bool flat = options.hosts == 1;
  PretendedHost host(**store, Format("host {}", rank * options.hosts / options.ranks));
  const auto config =
      ConfigOf(rank, options.ranks,
               {{"HVL_CPU_OPERATIONS", flat ? "tcp" : "auto"}, {"HVL_START_TIMEOUT", "300"}});
  if (!config.ok()) return config.status().ToString();
  const TimePoint start = SteadyClock().Now();
  auto session = session::CreateSession(
      *config, flat ? store->get() : static_cast<net::Store*>(&host), secret, StderrSink());
  report.start_seconds = SecondsSince(start);
  if (!session.ok()) return session.status().ToString();
  if ((*session)->data_plane() != (flat ? "tcp" : "two-level")) return "another data plane";
  const TimePoint running = SteadyClock().Now();
  std::string complaint = RunOperations(**session, options.operations);
  report.run_seconds = SecondsSince(running);
  const Descriptors open = CountDescriptors();
  report.descriptors = open.all;
  report.tcp_sockets = open.tcp;
  const TimePoint stopping = SteadyClock().Now();
  session->reset();
  report.stop_seconds = SecondsSince(stopping);
  return complaint;
}

[[noreturn]] void RunRank(int rank, const Options& options, const net::Secret& secret, int down,
                          int up) {
  ::alarm(kGiveUpSeconds);
  std::string address;
  for (char next = 0; ::read(down, &next, 1) == 1 && next != '\n';) address += next;
  Report report;
  const int before = CountDescriptors().all;
  std::string complaint = RunSession(rank, options, address, secret, report);
  report.leaked = CountDescriptors().all - before;
  if (complaint.empty() && report.leaked != 0)
    complaint = Format("{} descriptors are left", report.leaked);
  if (complaint.empty() && report.tcp_sockets > kMostTcpSockets)
    complaint = Format("{} TCP sockets", report.tcp_sockets);
  complaint.copy(report.complaint.data(), report.complaint.size() - 1);
  const bool told = ::write(up, &report, sizeof report) == ssize_t{sizeof report};
  std::_Exit(told && complaint.empty() ? 0 : 1);
}

struct Child {
  pid_t process;
  int down;
  int up;
};

std::vector<Child> ForkRanks(const Options& options, const net::Secret& secret) {
  std::vector<Child> ranks;
  for (int rank = 0; rank < options.ranks; ++rank) {
    std::array<int, 2> down{}, up{};
    if (::pipe(down.data()) != 0 || ::pipe(up.data()) != 0) std::abort();
    const pid_t process = ::fork();
    if (process < 0) std::abort();
    if (process == 0) {
      ::close(down[1]);
      ::close(up[0]);
      for (const Child& sibling : ranks) {
        ::close(sibling.down);
        ::close(sibling.up);
      }
      RunRank(rank, options, secret, down[0], up[1]);
    }
    ::close(down[0]);
    ::close(up[1]);
    ranks.push_back({process, down[1], up[0]});
  }
  return ranks;
}

// Forks before the store's thread exists. True when all ranks ended well.
bool Run(const Options& options) {
  const net::Secret secret = net::Secret::Random();
  const std::vector<Child> ranks = ForkRanks(options, secret);
  const auto server = net::StoreServer::Start(secret, "crowd", Logger());
  if (!server.ok()) {
    std::fprintf(stderr, "%s\n", server.status().ToString().c_str());
    std::abort();
  }
  const std::string line = (*server)->address() + '\n';
  for (const Child& rank : ranks) {
    if (::write(rank.down, line.data(), line.size()) < 0) std::abort();
  }
  Report most;
  bool all_well = true;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    Report report;
    if (::read(ranks[rank].up, &report, sizeof report) != ssize_t{sizeof report})
      std::string("ended without a word").copy(report.complaint.data(), 100);
    int status = 0;
    ::waitpid(ranks[rank].process, &status, 0);
    if (status != 0) {
      std::fprintf(stderr, "rank %zu (status %d): %s\n", rank, status, report.complaint.data());
      all_well = false;
    }
    most.start_seconds = std::max(most.start_seconds, report.start_seconds);
    most.run_seconds = std::max(most.run_seconds, report.run_seconds);
    most.stop_seconds = std::max(most.stop_seconds, report.stop_seconds);
    most.descriptors = std::max(most.descriptors, report.descriptors);
    most.tcp_sockets = std::max(most.tcp_sockets, report.tcp_sockets);
  }
  std::printf(
      "%d ranks on %d hosts: start %.2f s, %d operations %.2f s, stop %.2f s; at most %d "
      "descriptors, %d of them TCP sockets, in a process\n",
      options.ranks, options.hosts, most.start_seconds, options.operations, most.run_seconds,
      most.stop_seconds, most.descriptors, most.tcp_sockets);
  return all_well;
}

}  // namespace
}  // namespace hvl::test

int main(int argc, char** argv) {
  CLI::App app("Starts many ranks, runs operations of all kinds, and stops.");
  hvl::test::Options options;
  app.add_option("--ranks", options.ranks, "ranks, an even number of at most 64")
      ->check(CLI::Range(2, 64))
      ->capture_default_str();
  app.add_option("--operations", options.operations, "operations")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--hosts", options.hosts, "pretended hosts; 1: sockets between all ranks")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  ::signal(SIGPIPE, SIG_IGN);  // of a rank that has ended we hear otherwise
  const rlimit limit{hvl::test::kMostDescriptors, hvl::test::kMostDescriptors};
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) std::perror("cannot limit descriptors");
  return hvl::test::Run(options) ? 0 : 1;
}
