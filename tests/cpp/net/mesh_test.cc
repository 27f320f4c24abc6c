#include "csrc/net/mesh.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <catch2/catch.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/mesh_ranks.h"

namespace hvl::net {
namespace {

using test::Frame;
using test::JoinRanks;
using test::Meshes;
using test::PollForEvents;
using test::RecordingReceiver;
using test::RunRanks;

}  // namespace

TEST_CASE("a mesh of one rank needs no peers", "[mesh]") {
  auto meshes = JoinRanks(1);
  REQUIRE(meshes.ok());
  Mesh& mesh = *meshes->front();
  CHECK(mesh.size() == 1);
  CHECK(mesh.generation() == 1);
  RecordingReceiver receiver;
  CHECK_FALSE(mesh.Poll(Duration::zero(), receiver));
  CHECK(mesh.ExchangeFds(STDIN_FILENO)->size() == 1);
  CHECK(mesh.TakeDataLinks()->size() == 1);
  mesh.Close();
}

TEST_CASE("every rank reaches every other one, over Unix sockets and over TCP", "[mesh]") {
  const int size = GENERATE(2, 3, 8);
  const bool tcp = GENERATE(false, true);
  MeshOptions options;
  options.tcp_only = tcp;
  options.blob = "settings";
  auto meshes = JoinRanks(size, options);
  REQUIRE(meshes.ok());
  const auto received = RunRanks(size, [&](int rank) {
    Mesh& mesh = *(*meshes)[static_cast<std::size_t>(rank)];
    for (int peer = 0; peer < size; ++peer)
      if (peer != rank) mesh.Send(peer, Frame(Format("{} to {}", rank, peer)));
    RecordingReceiver receiver;
    PollForEvents(mesh, receiver, static_cast<std::size_t>(size) - 1);
    return receiver.events;
  });
  for (int rank = 0; rank < size; ++rank) {
    const auto& events = received[static_cast<std::size_t>(rank)];
    REQUIRE(events.size() == static_cast<std::size_t>(size) - 1);
    for (const auto& event : events) CHECK(event.frame == Format("{} to {}", event.peer, rank));
    CHECK((*meshes)[static_cast<std::size_t>(rank)]->blobs() ==
          std::vector<std::string>(static_cast<std::size_t>(size), "settings"));
  }
}

TEST_CASE("descriptors reach every peer", "[mesh]") {
  constexpr int kSize = 4;
  auto meshes = JoinRanks(kSize);
  REQUIRE(meshes.ok());
  const auto texts = RunRanks(kSize, [&](int rank) {
    UniqueFd own(::memfd_create("test", MFD_CLOEXEC));
    const std::string content = Format("memory of rank {}", rank);
    std::string seen;
    if (::pwrite(own.get(), content.data(), content.size(), 0) < 0) return seen;
    auto fds = (*meshes)[static_cast<std::size_t>(rank)]->ExchangeFds(own.get());
    if (!fds.ok()) return fds.status().ToString();
    for (int peer = 0; peer < kSize; ++peer) {
      const UniqueFd& fd = (*fds)[static_cast<std::size_t>(peer)];
      if (peer == rank) continue;
      std::string text(content.size(), ' ');
      if (::pread(fd.get(), text.data(), text.size(), 0) < 0) return seen;
      if ((::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) == 0) return std::string("inheritable");
      seen += text + ";";
    }
    return seen;
  });
  CHECK(texts[2] == "memory of rank 0;memory of rank 1;memory of rank 3;");
  CHECK(texts[0] == "memory of rank 1;memory of rank 2;memory of rank 3;");
}

TEST_CASE("a peer that closes is lost once, after its last frame", "[mesh]") {
  auto meshes = JoinRanks(2);
  REQUIRE(meshes.ok());
  (*meshes)[1]->Send(0, Frame("last words"));
  const bool says_goodbye = GENERATE(true, false);
  if (says_goodbye) (*meshes)[1]->Close();
  (*meshes)[1].reset();
  RecordingReceiver receiver;
  REQUIRE(PollForEvents(*(*meshes)[0], receiver, 2));
  CHECK(receiver.events[0].frame == "last words");
  const Status lost = receiver.events[1].lost;
  CHECK(lost.code() == StatusCode::kUnavailable);
  CHECK(lost.culprit_rank() == 1);
  CHECK_THAT(lost.message(), Catch::Contains("rank 1 (pid"));
  CHECK_THAT(lost.message(), Catch::Contains(says_goodbye ? "has left" : "closed its link"));
  (*meshes)[0]->Send(1, Frame("to nobody"));
  CHECK_FALSE((*meshes)[0]->Poll(Duration::zero(), receiver));
  CHECK(receiver.events.size() == 2);
}

TEST_CASE("a forked child that ends its copy of a mesh leaves the parent's links alone", "[mesh]") {
  auto meshes = JoinRanks(2);
  REQUIRE(meshes.ok());
  const pid_t child = ::fork();
  if (child == 0) {
    (*meshes)[0]->Close();
    meshes->clear();
    ::_exit(0);
  }
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  (*meshes)[0]->Send(1, Frame("still here"));
  RecordingReceiver receiver;
  REQUIRE(PollForEvents(*(*meshes)[1], receiver, 1));
  CHECK(receiver.events[0].frame == "still here");
}

TEST_CASE("wake ends the current or the next sleep, and poll does not use it up", "[mesh]") {
  auto meshes = JoinRanks(2);
  REQUIRE(meshes.ok());
  Mesh& mesh = *(*meshes)[0];
  RecordingReceiver receiver;
  mesh.Wake();
  CHECK_FALSE(mesh.Poll(Duration::zero(), receiver));
  mesh.Sleep(Duration::max());  // returns at once, or the test hangs
  for (int i = 0; i < 1000; ++i) {
    std::thread waker([&mesh] { mesh.Wake(); });
    mesh.Sleep(Duration::max());
    waker.join();
  }
  mesh.Wake();
  CHECK_FALSE(mesh.Poll(Duration::max(), receiver));
}

}  // namespace hvl::net
