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

/// "host 0" for the first `ranks_per_host[0]` ranks, and so on.
inline std::vector<std::string> PretendedHosts(std::span<const int> ranks_per_host) {
  std::vector<std::string> hosts;
  for (std::size_t host = 0; host < ranks_per_host.size(); ++host) {
    const auto ranks = static_cast<std::size_t>(ranks_per_host[host]);
    hosts.insert(hosts.end(), ranks, "host " + std::to_string(host));
  }
  return hosts;
}

/// Joins ranks over real sockets, which pretend to be on several hosts; `prototype.rank`, `.size`
/// and `.host_id` are filled in.
inline Result<Meshes> JoinHosts(std::span<const int> ranks_per_host,
                                net::MeshOptions prototype = {}) {
  const std::vector<std::string> hosts = PretendedHosts(ranks_per_host);
  net::MemoryStore store;
  auto joined = RunRanks(static_cast<int>(hosts.size()), [&](int rank) {
    net::MeshOptions options = prototype;
    options.rank = rank;
    options.size = static_cast<int>(hosts.size());
    if (ranks_per_host.size() > 1) options.host_id = hosts[static_cast<std::size_t>(rank)];
    return net::Mesh::Join(store, std::move(options), Logger());
  });
  Meshes meshes;
  for (auto& mesh : joined) {
    HVL_RETURN_IF_ERROR(mesh.status());
    meshes.push_back(std::move(mesh).value());
  }
  return meshes;
}

/// The same on one host.
inline Result<Meshes> JoinRanks(int size, net::MeshOptions prototype = {}) {
  return JoinHosts({&size, 1}, std::move(prototype));
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
