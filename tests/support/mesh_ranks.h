// Meshes of ranks that are threads of the test process, and a receiver that writes down what
// arrives.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "csrc/net/mesh.h"
#include "csrc/net/secret.h"
#include "csrc/net/store.h"
#include "tests/support/ranks.h"

namespace hvl::test {

using Meshes = std::vector<std::unique_ptr<net::Mesh>>;

/// Joins `size` ranks over real sockets. `prototype.rank` and `.size` are filled in.
inline Result<Meshes> JoinRanks(int size, net::MeshOptions prototype = {}) {
  net::MemoryStore store;
  auto joined = RunRanks(size, [&](int rank) {
    net::MeshOptions options = prototype;
    options.rank = rank;
    options.size = size;
    return net::Mesh::Join(store, std::move(options), Logger());
  });
  Meshes meshes;
  for (auto& mesh : joined) {
    HVL_RETURN_IF_ERROR(mesh.status());
    meshes.push_back(std::move(mesh).value());
  }
  return meshes;
}

/// Text as the bytes of a frame.
inline std::span<const std::byte> Frame(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// Writes down frames and losses in the order in which they come.
class RecordingReceiver final : public net::MeshReceiver {
 public:
  struct Event {
    int peer = 0;
    std::string frame;
    Status lost;  // OK for a frame
  };

  void OnFrame(int peer, std::span<const std::byte> frame) override {
    events.push_back(
        {peer, {reinterpret_cast<const char*>(frame.data()), frame.size()}, Status::Ok()});
  }
  void OnPeerLost(int peer, const Status& cause) override { events.push_back({peer, "", cause}); }

  std::vector<Event> events;
};

/// Polls until `receiver` has at least `count` events. False when that takes longer than
/// kHangLimit.
inline bool PollForEvents(net::Mesh& mesh, RecordingReceiver& receiver, std::size_t count) {
  const TimePoint give_up = SteadyClock().Now() + kHangLimit;
  while (receiver.events.size() < count) {
    if (SteadyClock().Now() > give_up) return false;
    mesh.Poll(kHangLimit, receiver);
  }
  return true;
}

}  // namespace hvl::test
