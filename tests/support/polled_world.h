// Ranks that are threads of the test process, each of which polls its mesh.
#pragma once

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/mesh_ranks.h"

namespace hvl::test {

// Every rank polls on a thread of its own until told to stop, as the engine's threads do.
class PolledWorld {
 public:
  using Event = RecordingReceiver::Event;
  /// What a rank does about an event, on its polling thread, after the poll that brought it.
  using Reaction = std::function<void(net::Mesh&, const Event&)>;

  explicit PolledWorld(Meshes meshes, Reaction reaction = {})
      : meshes_(std::move(meshes)), ranks_(meshes_.size()), reaction_(std::move(reaction)) {
    for (std::size_t rank = 0; rank < meshes_.size(); ++rank) Start(static_cast<int>(rank));
  }
  ~PolledWorld() {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) Stop(static_cast<int>(rank));
  }

  /// The rank polls no more, as one whose process is stopped.
  void Stop(int rank) {
    Rank& state = At(rank);
    if (!state.thread.joinable()) return;
    state.stop.store(true);
    MeshOf(rank).Wake();
    state.thread.join();
  }
  /// Its process is gone.
  void Kill(int rank) {
    Stop(rank);
    meshes_[static_cast<std::size_t>(rank)].reset();
  }
  /// Its session is shut down. Returns how long that took.
  Duration Leave(int rank) {
    Stop(rank);
    const TimePoint begin = SteadyClock().Now();
    MeshOf(rank).Close();
    meshes_[static_cast<std::size_t>(rank)].reset();
    return SteadyClock().Now() - begin;
  }
  /// Between two polls.
  void Send(int from, int to, const std::string& text) {
    const std::lock_guard lock(At(from).mutex);
    MeshOf(from).Send(to, Frame(text));
  }

  std::vector<Event> Events(int rank) {
    const std::lock_guard lock(At(rank).mutex);
    return At(rank).receiver.events;
  }
  /// What `rank` has seen once it has seen `count` events, or after the limit.
  std::vector<Event> Await(int rank, std::size_t count, Duration limit = kHangLimit) {
    const TimePoint give_up = SteadyClock().Now() + limit;
    for (;;) {
      std::vector<Event> events = Events(rank);
      if (events.size() >= count || SteadyClock().Now() > give_up) return events;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  struct Rank {
    std::mutex mutex;
    RecordingReceiver receiver;
    std::atomic<bool> stop = false;
    std::thread thread;
  };
  Rank& At(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  net::Mesh& MeshOf(int rank) { return *meshes_[static_cast<std::size_t>(rank)]; }

  void Start(int rank) {
    At(rank).thread = std::thread([this, rank] {
      while (!At(rank).stop.load()) {
        {
          const std::lock_guard lock(At(rank).mutex);
          std::vector<Event>& events = At(rank).receiver.events;
          const std::size_t before = events.size();
          MeshOf(rank).Poll(Duration::zero(), At(rank).receiver);
          for (std::size_t i = before; reaction_ && i < events.size(); ++i)
            reaction_(MeshOf(rank), events[i]);
        }
        MeshOf(rank).Sleep(std::chrono::seconds(10));
      }
    });
  }

  Meshes meshes_;
  std::vector<Rank> ranks_;
  const Reaction reaction_;
};

/// The ranks that were lost, in order, with their causes; frames left out.
inline std::map<int, Status> Losses(const std::vector<PolledWorld::Event>& events) {
  std::map<int, Status> losses;
  for (const auto& event : events) {
    if (event.lost.ok()) continue;
    CHECK_FALSE(losses.contains(event.peer));  // once
    losses.emplace(event.peer, event.lost);
  }
  return losses;
}

inline std::vector<int> LostRanks(const std::vector<PolledWorld::Event>& events) {
  std::vector<int> ranks;
  for (const auto& [rank, cause] : Losses(events)) ranks.push_back(rank);
  return ranks;
}

}  // namespace hvl::test
