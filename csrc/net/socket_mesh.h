// The Mesh over sockets: one control link per peer, served by whichever thread drives the engine.
#pragma once

#include <sys/epoll.h>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "csrc/base/log.h"
#include "csrc/net/frames.h"
#include "csrc/net/mesh.h"

namespace hvl::net {

/// What Join found out about one peer.
struct PeerLink {
  UniqueFd socket;
  UniqueFd process_fd;  ///< see WatchProcess; invalid for ranks of this process
  int pid = 0;          ///< 0 = not visible from here
};

/// What Join found out about the world.
struct MeshWorld {
  std::uint64_t generation = 0;
  std::vector<std::string> blobs;  ///< by rank
  std::vector<int> hosts;          ///< by rank
};

class SocketMesh final : public Mesh {
 public:
  /// `links` by rank, own entry empty. `options.blob` is not used any more.
  static Result<std::unique_ptr<Mesh>> Create(MeshOptions options, MeshWorld world,
                                              std::vector<PeerLink> links, Logger logger);
  ~SocketMesh() override;
  SocketMesh(const SocketMesh&) = delete;
  SocketMesh& operator=(const SocketMesh&) = delete;

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  std::uint64_t generation() const override { return world_.generation; }
  const std::vector<std::string>& blobs() const override { return world_.blobs; }
  const std::vector<int>& hosts() const override { return world_.hosts; }

  Result<std::vector<UniqueFd>> ExchangeFds(int fd) override;
  Result<std::vector<UniqueFd>> ConnectData() override;

  void Send(int peer, std::span<const std::byte> frame) override;
  bool Poll(Duration timeout, MeshReceiver& receiver) override;
  void Sleep(Duration timeout) override;
  void Wake() override;
  void Close() override;

 private:
  struct Peer {
    int rank = 0;
    PeerLink link;
    ByteQueue unsent;
    ByteQueue partial;      // read, but not a whole frame yet
    bool lost = false;      // reported; its descriptors are closed
    bool muted = false;     // takes no more frames: its socket failed, or we said goodbye
    bool writable = false;  // epoll tells when the socket takes bytes
  };
  enum class Received : std::uint8_t { kNothing, kSome, kEnd };

  SocketMesh(MeshOptions options, MeshWorld world, Logger logger);
  Status Register(std::vector<PeerLink> links);
  bool OnThisHost(int rank) const;
  std::vector<int> ProcessFds() const;

  void Enqueue(Peer& peer, FrameKind kind, std::span<const std::byte> payload);
  void Flush(Peer& peer);
  void WatchWritable(Peer& peer, bool on);

  int WaitForEvents(int timeout_ms, std::span<epoll_event> events);
  Received Receive(Peer& peer, MeshReceiver& receiver);
  bool Deliver(Peer& peer, std::span<const std::byte> bytes, std::size_t& consumed,
               MeshReceiver& receiver);
  void DrainDeadProcess(Peer& peer, MeshReceiver& receiver);
  void Lose(Peer& peer, const Status& cause, MeshReceiver& receiver);
  Status Overflowed(const Peer& peer) const;
  Status EndOf(const Peer& peer) const;

  // Fixed at construction.
  const MeshOptions options_;
  const MeshWorld world_;
  const Logger logger_;
  const int owner_pid_;
  UniqueFd epoll_;
  UniqueFd wake_event_;

  // Owned by the thread that calls Send and Poll.
  std::vector<Peer> peers_;  // by rank; the own entry counts as lost
  std::vector<std::byte> scratch_;
  std::vector<int> overflowed_;  // ranks to be given up at the next Poll

  // Self-synchronised.
  std::atomic<bool> wake_requested_ = false;
  std::atomic<bool> sleeping_ = false;
};

}  // namespace hvl::net
