// A mesh whose links misbehave on order: frames vanish, wait, or the link is cut. A decorator of
// any other mesh; the faults come from a script or from a seed, and are the same in every run.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "csrc/net/mesh.h"

namespace hvl::test {

/// What happens to the frames that one rank sends. Frames are counted per peer, from 1.
struct FaultScript {
  /// These frames vanish.
  std::map<int, std::set<std::uint64_t>> drop;
  /// The link to the peer is cut when this many frames were sent: both directions fall silent, as
  /// when a cable is pulled. This side reports the loss at its next Poll; the peer hears nothing.
  std::map<int, std::uint64_t> cut_after;
  /// Above 0: each frame waits for 0 to `delay_polls` calls of Poll, drawn from `seed`. Frames to
  /// one peer keep their order.
  unsigned delay_polls = 0;
  std::uint64_t seed = 1;
};

class FaultMesh final : public net::Mesh {
 public:
  FaultMesh(std::unique_ptr<net::Mesh> inner, FaultScript script)
      : inner_(std::move(inner)), script_(std::move(script)), random_(script_.seed) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::uint64_t generation() const override { return inner_->generation(); }
  const std::vector<std::string>& blobs() const override { return inner_->blobs(); }
  const std::vector<int>& hosts() const override { return inner_->hosts(); }
  Result<std::vector<net::UniqueFd>> ExchangeFds(int fd) override {
    return inner_->ExchangeFds(fd);
  }
  std::unique_ptr<net::DataLinks> TakeDataLinks() override { return inner_->TakeDataLinks(); }

  void Send(int peer, std::span<const std::byte> frame) override {
    Link& link = links_[peer];
    if (link.cut) return;
    const std::uint64_t number = ++link.sent;
    if (!script_.drop[peer].contains(number)) {
      const std::uint64_t wait =
          script_.delay_polls == 0 ? 0 : random_() % (script_.delay_polls + 1);
      link.waiting.push_back({polls_ + wait, {frame.begin(), frame.end()}});
      SendDue(peer, link);
    }
    const auto cut = script_.cut_after.find(peer);
    link.cut = cut != script_.cut_after.end() && number >= cut->second;
    UpdateMustPoll();
  }

  bool Poll(Duration timeout, net::MeshReceiver& receiver) override {
    ++polls_;
    for (auto& [peer, link] : links_) SendDue(peer, link);
    const bool lost = ReportCuts(receiver);
    UpdateMustPoll();
    Filter filter(*this, receiver);
    const bool must_return = lost || must_poll_.load();
    const bool delivered = inner_->Poll(must_return ? Duration::zero() : timeout, filter);
    return delivered || lost;
  }
  void Sleep(Duration timeout) override {
    inner_->Sleep(must_poll_.load() ? Duration::zero() : timeout);
  }
  void Wake() override { inner_->Wake(); }
  void FinishSending() override { inner_->FinishSending(); }
  void Close() override { inner_->Close(); }

 private:
  struct Waiting {
    std::uint64_t due;  // number of the poll
    std::vector<std::byte> frame;
  };
  struct Link {
    std::uint64_t sent = 0;
    bool cut = false;
    bool reported = false;
    std::deque<Waiting> waiting;
  };

  // Keeps what comes over a link that was cut from the receiver.
  class Filter final : public net::MeshReceiver {
   public:
    Filter(FaultMesh& mesh, net::MeshReceiver& receiver) : mesh_(mesh), receiver_(receiver) {}
    void OnFrame(int peer, std::span<const std::byte> frame) override {
      if (!mesh_.links_[peer].cut) receiver_.OnFrame(peer, frame);
    }
    void OnPeerLost(int peer, const Status& cause) override {
      Link& link = mesh_.links_[peer];
      if (!std::exchange(link.reported, true)) receiver_.OnPeerLost(peer, cause);
    }

   private:
    FaultMesh& mesh_;
    net::MeshReceiver& receiver_;
  };

  void SendDue(int peer, Link& link) {
    while (!link.waiting.empty() && link.waiting.front().due <= polls_) {
      inner_->Send(peer, link.waiting.front().frame);
      link.waiting.pop_front();
    }
  }

  bool ReportCuts(net::MeshReceiver& receiver) {
    bool any = false;
    for (auto& [peer, link] : links_) {
      if (!link.cut || std::exchange(link.reported, true)) continue;
      link.waiting.clear();
      receiver.OnPeerLost(peer, Status(StatusCode::kUnavailable, "the test cut the link", peer));
      any = true;
    }
    return any;
  }

  // A frame that waits for polls must not wait for ever because everybody sleeps.
  void UpdateMustPoll() {
    bool must = false;
    for (const auto& [peer, link] : links_)
      must = must || !link.waiting.empty() || (link.cut && !link.reported);
    if (must && !must_poll_.exchange(true)) inner_->Wake();
    if (!must) must_poll_.store(false);
  }

  const std::unique_ptr<net::Mesh> inner_;
  FaultScript script_;
  std::mt19937_64 random_;
  std::map<int, Link> links_;  // by peer
  std::uint64_t polls_ = 0;
  std::atomic<bool> must_poll_ = false;  // read by the thread that sleeps
};

}  // namespace hvl::test
