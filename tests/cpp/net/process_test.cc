// Ranks as processes that end in every way there is. The test itself is rank 0.
#include "csrc/net/process.h"

#include <dirent.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <future>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "csrc/net/rank_card.h"
#include "tests/support/mesh_ranks.h"

namespace hvl::net {
namespace {

using test::PollForEvents;
using test::RecordingReceiver;

// Processes net_peer as ranks 1..size-1, and the mesh of rank 0. Kills and collects what is left.
class Job {
 public:
  Job(int size, const std::string& transport, const std::string& behaviour)
      : secret_(Secret::Random()),
        secret_fd_(secret_.ToSealedFd().value()),
        server_(StoreServer::Start(secret_, "job", Logger()).value()) {
    for (int rank = 1; rank < size; ++rank) Spawn(rank, size, transport, behaviour);
    MeshOptions options;
    options.size = size;
    options.job_id = "job";
    options.secret = secret_;
    options.tcp_only = transport == "tcp";
    auto store = OpenStore(server_->address(), secret_, "job").value();
    mesh_ = Mesh::Join(*store, options, Logger()).value();
    if (!options.tcp_only) REQUIRE(mesh_->ExchangeFds(STDIN_FILENO).ok());
  }
  ~Job() {
    for (const pid_t pid : pids_) ::kill(pid, SIGKILL);
    for (const pid_t pid : pids_) ::waitpid(pid, nullptr, 0);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  Mesh& mesh() { return *mesh_; }
  pid_t pid(int rank) const { return pids_[static_cast<std::size_t>(rank) - 1]; }
  const Secret& secret() const { return secret_; }

  /// Says goodbye; returns the exit codes of the others.
  std::vector<int> End() {
    mesh_->Close();
    std::vector<int> codes;
    for (const pid_t pid : std::exchange(pids_, {})) {
      int status = 0;
      ::waitpid(pid, &status, 0);
      codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    }
    return codes;
  }

 private:
  void Spawn(int rank, int size, const std::string& transport, const std::string& behaviour) {
    std::vector<std::string> words = {HVL_NET_PEER,
                                      std::to_string(rank),
                                      std::to_string(size),
                                      server_->address(),
                                      std::to_string(secret_fd_.get()),
                                      transport,
                                      behaviour};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_t pid = 0;
    REQUIRE(::posix_spawn(&pid, HVL_NET_PEER, nullptr, nullptr, arguments.data(), environ) == 0);
    pids_.push_back(pid);
  }

  Secret secret_;
  UniqueFd secret_fd_;
  std::unique_ptr<StoreServer> server_;
  std::unique_ptr<Mesh> mesh_;
  std::vector<pid_t> pids_;
};

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::size_t CountEntries(const char* folder) {
  std::size_t count = 0;
  DIR* const dir = ::opendir(folder);
  REQUIRE(dir != nullptr);
  while (::readdir(dir) != nullptr) ++count;
  ::closedir(dir);
  return count;
}

}  // namespace

TEST_CASE("a process above this one is found by its name") {
  std::ifstream file(Format("/proc/{}/comm", ::getppid()));
  std::string parent;
  std::getline(file, parent);
  CHECK(AncestorNamed(parent) == ::getppid());
  CHECK_FALSE(AncestorNamed("no such name").has_value());
  CHECK_FALSE(AncestorNamed("").has_value());
}

TEST_CASE("a killed peer is reported with its pid and signal", "[process]") {
  Job job(3, GENERATE("unix", "tcp"), "serve");
  RecordingReceiver receiver;
  REQUIRE(PollForEvents(job.mesh(), receiver, 2));  // "here" of both
  receiver.events.clear();
  const bool stopped_first = GENERATE(false, true);
  if (stopped_first) ::kill(job.pid(2), SIGSTOP);
  ::kill(job.pid(2), SIGKILL);
  REQUIRE(PollForEvents(job.mesh(), receiver, 1));
  CHECK(receiver.events[0].peer == 2);
  CHECK(receiver.events[0].lost.code() == StatusCode::kUnavailable);
  CHECK(receiver.events[0].lost.culprit_rank() == 2);
  CHECK_THAT(
      receiver.events[0].lost.message(),
      Catch::Contains(Format("rank 2 (pid {}) was killed by signal 9 (Killed)", job.pid(2))));
  // The other one still serves.
  job.mesh().Send(1, test::Frame("ping"));
  REQUIRE(PollForEvents(job.mesh(), receiver, 2));
  CHECK(receiver.events[1].frame == "ping");
  CHECK(job.End() == std::vector<int>{0, -SIGKILL});
}

TEST_CASE("a peer that exits without a goodbye is reported with its code", "[process]") {
  Job job(2, GENERATE("unix", "tcp"), "exit");
  RecordingReceiver receiver;
  REQUIRE(PollForEvents(job.mesh(), receiver, 2));
  CHECK_THAT(receiver.events[0].frame, Catch::StartsWith("here"));
  CHECK_THAT(receiver.events[1].lost.message(), Catch::Contains("exited with code 7"));
}

TEST_CASE("ranks that leave as soon as they are set up do not spoil it for slower ones",
          "[process]") {
  for (int i = 0; i < 30; ++i) {
    Job job(5, i % 2 == 0 ? "unix" : "tcp", "exit");
    REQUIRE(job.End() == std::vector<int>(4, 7));
  }
}

TEST_CASE("a peer is lost even while a child of its holds its sockets open", "[process]") {
  Job job(2, GENERATE("unix", "tcp"), "fork");
  RecordingReceiver receiver;
  REQUIRE(PollForEvents(job.mesh(), receiver, 2));
  const std::string tells_child = receiver.events[1].frame;
  REQUIRE_THAT(tells_child, Catch::StartsWith("child "));
  const pid_t child = std::stoi(tells_child.substr(6));
  ::kill(job.pid(1), SIGKILL);
  REQUIRE(PollForEvents(job.mesh(), receiver, 3));
  CHECK_THAT(receiver.events[2].lost.message(), Catch::Contains("killed by signal 9"));
  CHECK(::kill(child, 0) == 0);  // it is alive and well
  ::kill(child, SIGKILL);
}

TEST_CASE("a watched process tells when and how it ended", "[process]") {
  Job job(2, "unix", "serve");
  const UniqueFd watch = WatchProcess(job.pid(1));
  REQUIRE(watch.valid());
  CHECK_FALSE(ProcessEnded(watch.get(), 0));
  ::kill(job.pid(1), SIGKILL);
  REQUIRE(ProcessEnded(watch.get(), 60'000));
  CHECK(DescribeEnd(job.pid(1), watch.get()) == "was killed by signal 9 (Killed)");
  job.End();
  // Once the parent has collected it, only newer kernels can tell.
  CHECK_THAT(DescribeEnd(1 << 22, watch.get()),
             Catch::Equals("was killed by signal 9 (Killed)") || Catch::Equals("ended"));
  CHECK_FALSE(WatchProcess(0).valid());
  CHECK_FALSE(WatchProcess(-5).valid());
}

TEST_CASE("a process that dies after the rendezvous, before it connects, is named", "[process]") {
  const pid_t victim = ::fork();
  if (victim == 0) {
    for (;;) ::pause();
  }
  MemoryStore store;
  auto mesh = std::async(std::launch::async, [&store] {
    MeshOptions options;
    options.size = 2;
    options.timeout = test::kHangLimit;
    return Mesh::Join(store, options, Logger());
  });
  const RankCard card{.address = "unix:@nobody-listens-here",
                      .pid = static_cast<std::uint32_t>(victim),
                      .pid_scope = PidScope(),
                      .host_id = HostId(),
                      .host_name = HostName(),
                      .blob = ""};
  REQUIRE(store.Join(1, 2, EncodeCard(card), test::kHangLimit).ok());
  ::kill(victim, SIGKILL);
  const Status status = mesh.get().status();
  ::waitpid(victim, nullptr, 0);
  CHECK(status.code() == StatusCode::kUnavailable);
  CHECK(status.culprit_rank() == 1);
  CHECK_THAT(status.message(), Catch::Contains("the process of rank 1 ended"));
}

TEST_CASE("sixty-four processes on a small machine meet within 256 descriptors each", "[process]") {
  constexpr int kSize = 64;
  Job job(kSize, "unix", "serve");
  RecordingReceiver receiver;
  REQUIRE(PollForEvents(job.mesh(), receiver, kSize - 1));
  for (const auto& event : receiver.events) CHECK_THAT(event.frame, Catch::StartsWith("here"));
  CHECK(job.End() == std::vector<int>(kSize - 1, 0));
}

TEST_CASE("nothing that others can read of a process holds the secret", "[process]") {
  Job job(2, "unix", "serve");
  RecordingReceiver receiver;
  REQUIRE(PollForEvents(job.mesh(), receiver, 1));
  const std::string raw(reinterpret_cast<const char*>(job.secret().key.data()), 32);
  std::string hex;
  for (const std::byte b : job.secret().key) hex += Format("{:02x}", static_cast<unsigned>(b));
  for (const char* file : {"cmdline", "environ", "comm", "status"}) {
    const std::string content = ReadFile(Format("/proc/{}/{}", job.pid(1), file));
    CHECK_FALSE(content.empty());
    CHECK(content.find(raw.substr(0, 8)) == std::string::npos);
    CHECK(content.find(hex.substr(0, 16)) == std::string::npos);
  }
}

TEST_CASE("a hundred meshes come and go without a trace", "[process]") {
  const auto cycle = [](bool tcp) {
    MeshOptions options;
    options.tcp_only = tcp;
    auto meshes = test::JoinRanks(2, options);
    REQUIRE(meshes.ok());
    const UniqueFd never(::eventfd(0, EFD_CLOEXEC));
    const auto data = test::RunRanks(2, [&](int rank) {
      const auto links = (*meshes)[static_cast<std::size_t>(rank)]->TakeDataLinks();
      return links->Connect(std::vector<int>{1 - rank}, never.get()).ok();
    });
    CHECK(data == std::vector<bool>{true, true});
    for (auto& mesh : *meshes) mesh->Close();
  };
  cycle(false);  // OpenSSL and the allocator keep a little from the first time
  cycle(true);
  const std::size_t files = CountEntries("/proc/self/fd");
  const std::size_t threads = CountEntries("/proc/self/task");
  for (int i = 0; i < 100; ++i) cycle(i % 2 == 0);
  CHECK(CountEntries("/proc/self/fd") == files);
  CHECK(CountEntries("/proc/self/task") == threads);
}

}  // namespace hvl::net
