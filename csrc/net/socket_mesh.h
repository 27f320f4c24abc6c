// The Mesh over sockets: control links to the peers of this host and, where this rank leads it, to
// neighbouring hosts, served by whichever thread drives the engine.
#pragma once

#include <sys/epoll.h>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/base/log.h"
#include "csrc/net/frames.h"
#include "csrc/net/handshake.h"
#include "csrc/net/heartbeats.h"
#include "csrc/net/host_tree.h"
#include "csrc/net/leaving.h"
#include "csrc/net/mesh.h"
#include "csrc/net/route.h"
#include "csrc/net/sealed_stream.h"
#include "csrc/net/socket.h"

namespace hvl::net {

/// What Join found out about one peer.
struct PeerLink {
  UniqueFd socket;
  UniqueFd process_fd;                ///< see WatchProcess; invalid for ranks of this process
  int pid = 0;                        ///< 0 = not visible from here
  std::optional<LinkKeys> keys = {};  ///< to another host: what its bytes are sealed with
};

/// What Join found out about the world.
struct MeshWorld {
  std::uint64_t generation = 0;
  // By rank.
  std::vector<std::string> blobs;
  std::vector<int> hosts;
  std::vector<std::string> host_names;
  std::vector<std::string> data_addresses;
};

class SocketMesh final : public Mesh {
 public:
  /// `links` by rank, empty where HostTree has none. `options.blob` is not used any more.
  static Result<std::unique_ptr<Mesh>> Create(MeshOptions options, MeshWorld world,
                                              std::vector<PeerLink> links, Listener data,
                                              Logger logger);
  ~SocketMesh() override;
  SocketMesh(const SocketMesh&) = delete;
  SocketMesh& operator=(const SocketMesh&) = delete;

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  std::uint64_t generation() const override { return world_.generation; }
  const std::vector<std::string>& blobs() const override { return world_.blobs; }
  const std::vector<int>& hosts() const override { return world_.hosts; }

  Result<std::vector<UniqueFd>> ExchangeFds(int fd) override;
  std::unique_ptr<DataLinks> TakeDataLinks() override;

  void Send(int peer, std::span<const std::byte> frame) override;
  bool Poll(Duration timeout, MeshReceiver& receiver) override;
  void Sleep(Duration timeout) override;
  void Wake() override;
  void FinishSending() override;
  void Close() override;

 private:
  // The two directions of a link to another host.
  struct Seal {
    explicit Seal(const LinkKeys& keys) : sealer(keys.send), opener(keys.receive) {}
    Sealer sealer;
    Opener opener;
    ByteQueue records;  // read, but not opened yet
  };
  struct Peer {
    int rank = 0;
    PeerLink link;  // no socket: reached over the link of another peer
    std::unique_ptr<Seal> seal;
    ByteQueue unsent;
    ByteQueue partial;      // read, but not a whole frame yet
    bool lost = false;      // reported; its descriptors are closed
    bool muted = false;     // takes no more frames: its socket failed, or we said goodbye
    bool writable = false;  // epoll tells when the socket takes bytes
  };
  enum class Received : std::uint8_t { kNothing, kSome, kEnd };

  SocketMesh(MeshOptions options, MeshWorld world, Logger logger);
  Status Register(std::vector<PeerLink> links);
  Status WatchHosts();
  Peer& At(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  std::string NameOf(const Peer& peer) const;

  void Enqueue(Peer& peer, FrameKind kind, std::span<const std::byte> route,
               std::span<const std::byte> payload);
  static bool Write(Peer& peer, std::span<const std::span<const std::byte>> parts,
                    std::size_t& sent);
  void SealAndFlush(Peer& peer, std::span<const std::span<const std::byte>> parts);
  void LimitQueue(Peer& peer);
  void Flush(Peer& peer);
  void WatchWritable(Peer& peer, bool on);

  int WaitForEvents(int timeout_ms, std::span<epoll_event> events);
  Received Receive(Peer& peer, MeshReceiver& receiver);
  Received ReceiveSealed(Peer& peer, std::span<const std::byte> records, MeshReceiver& receiver);
  bool Deliver(Peer& peer, std::span<const std::byte> bytes, std::size_t& consumed,
               MeshReceiver& receiver);
  Status Take(Peer& peer, const NextFrame& frame, MeshReceiver& receiver);
  Status TakeRouted(Peer& peer, std::span<const std::byte> payload, MeshReceiver& receiver);
  Status TakeLoss(Peer& peer, std::span<const std::byte> payload, MeshReceiver& receiver);
  void DrainDeadProcess(Peer& peer, MeshReceiver& receiver);

  bool BeatIfDue(MeshReceiver& receiver);
  void Heard(const Peer& peer);
  void CloseLink(Peer& peer);
  void Lose(Peer& peer, const Status& cause, MeshReceiver& receiver);
  void Report(const LossNotice& loss, int teller, MeshReceiver& receiver);
  void TellOthers(const LossNotice& loss, int teller);

  void TellNoMore();
  void PassOnForOthers();
  void SayGoodbye(TimePoint deadline);
  void AwaitEnds(TimePoint deadline);

  Status Overflowed(const Peer& peer) const;
  Status Corrupt(const Peer& peer, std::string_view what) const;
  Status Silent(const Peer& peer) const;
  Status EndOf(const Peer& peer, int error) const;

  // Fixed at construction.
  const MeshOptions options_;
  const MeshWorld world_;
  const HostTree tree_;
  const Logger logger_;
  const int owner_pid_;
  UniqueFd epoll_;
  UniqueFd wake_event_;

  // Until TakeDataLinks.
  Listener data_listener_;

  // Owned by the thread that calls Send and Poll.
  std::vector<Peer> peers_;  // by rank; the own entry counts as lost
  std::unique_ptr<Heartbeats>
      beats_;  // where there are links to other hosts; Sleep looks at it, too
  std::vector<std::byte> scratch_;
  std::vector<int> overflowed_;  // ranks to be given up at the next Poll
  Leaving leaving_;

  // Self-synchronised.
  std::atomic<bool> wake_requested_ = false;
  std::atomic<bool> sleeping_ = false;
};

}  // namespace hvl::net
