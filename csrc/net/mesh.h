// Control frames from this rank to every other one over authenticated links, descriptor passing,
// and the first knowledge that a peer is gone (end of stream, exit of the process by pidfd, or
// silence of its host). Ranks of a host are linked with each other; between hosts leaders pass
// frames on (host_tree.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/log.h"
#include "csrc/net/data_links.h"
#include "csrc/net/fd.h"
#include "csrc/net/secret.h"
#include "csrc/net/store.h"
#include "horovodlite/status.h"

namespace hvl::net {

/// Longest frame that Send takes. A longer one from a peer means a broken stream.
inline constexpr std::size_t kMaxFrameBytes = 64 << 20;

struct MeshOptions {
  int rank = 0;
  int size = 1;
  std::string job_id;
  Secret secret;  ///< unless the store makes one
  /// For the whole of Join, and again for ExchangeFds and each DataLinks::Connect.
  Duration timeout = std::chrono::seconds(60);
  std::string blob;  ///< anything to show to all peers (version, must-agree knobs)
  /// Control over TCP loopback instead of Unix sockets; then no descriptors can be exchanged.
  bool tcp_only = false;
  /// The host that this rank takes itself to be on; empty: found out (HostId). Ranks of one process
  /// can so pretend to be on several.
  std::string host_id = {};
  /// Where the store serves several hosts: by which addresses of this host others may reach it, see
  /// ChooseAddresses. Of several it is the one that leads to the store (LocalHost), else the first;
  /// empty: the one that leads to the store.
  std::string networks = {};
  /// Of the tree of hosts.
  int radix = 8;
  /// Another host that shows no sign of life for this long is lost. Hosts that run this code beat
  /// eight times as often, whatever their programs do. Zero: never.
  Duration silence_limit = std::chrono::seconds(2);
  /// A peer that lets this much pile up does not read any more: it is given up as lost.
  std::size_t max_queued_bytes = 256 << 20;
};

/// Called from inside Poll, on the polling thread.
class MeshReceiver {
 public:
  virtual ~MeshReceiver() = default;
  /// `frame` is valid during the call only.
  virtual void OnFrame(int peer, std::span<const std::byte> frame) = 0;
  /// Once per peer; after every frame that the peer sent before it went and that has come this far.
  /// `cause` says how it went. Its culprit_rank() is the peer, or the leader that reached it for
  /// this rank and is lost itself, which is reported first.
  virtual void OnPeerLost(int peer, const Status& cause) = 0;
};

class Mesh {
 public:
  /// Collective: meets at `store`, connects every pair of a host and the hosts as a tree,
  /// authenticates both ways (job, generation, channel, both ranks). Unavailable/Timeout name the
  /// peer. Size 1: no sockets at all.
  static Result<std::unique_ptr<Mesh>> Join(Store& store, MeshOptions options, Logger logger);
  /// Closes all links. In a forked child (and so Close) it leaves the links of its parent alone.
  virtual ~Mesh() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::uint64_t generation() const = 0;
  /// What each rank put into MeshOptions::blob, by rank.
  virtual const std::vector<std::string>& blobs() const = 0;
  /// Which host each rank is on, by rank. Hosts are numbered by their lowest ranks, and the ranks
  /// of a host follow each other. Ranks of one host can exchange descriptors.
  virtual const std::vector<int>& hosts() const = 0;

  // Set-up, before the first Poll.

  /// Gives `fd` to every peer on this host and returns theirs by rank (invalid: own entry, other
  /// hosts). Needs Unix links. Collective; blocks until all peers did the same (or timeout).
  virtual Result<std::vector<UniqueFd>> ExchangeFds(int fd) = 0;
  /// What a data plane needs to connect to its peers, now and later, without this mesh. Local;
  /// once.
  virtual std::unique_ptr<DataLinks> TakeDataLinks() = 0;

  // Control plane. One thread at a time (whoever drives the engine) may call Send and Poll.
  // Sleeping is apart from polling, so that a sleeper never has to be asked to give up the right to
  // poll.

  /// Queues a frame and writes what the socket takes; never blocks, keeps order per peer. Frames to
  /// a lost peer are dropped (its loss has been or will be reported). `peer` is another rank; at
  /// most kMaxFrameBytes. May be called from inside OnFrame and OnPeerLost.
  virtual void Send(int peer, std::span<const std::byte> frame) = 0;
  /// Writes queued bytes, delivers what has arrived. Waits at most `timeout` for something to do: 0
  /// = never sleeps, Duration::max() = until a frame, a loss or Wake(); earlier where this rank has
  /// to beat or pass something on for other hosts, so the engine's thread keeps coming back.
  /// Returns true if anything was delivered.
  virtual bool Poll(Duration timeout, MeshReceiver& receiver) = 0;
  /// Sleeps until Poll(0) would deliver or write something, until Wake(), or for `timeout`
  /// (Duration::max() = for ever). Delivers nothing and changes no link, so one thread may sleep
  /// here while another one calls Send and Poll. May return early for no reason.
  virtual void Sleep(Duration timeout) = 0;
  /// Any thread: makes the current or else the next Sleep (or sleeping Poll) return; Poll(0) does
  /// not use it up. Cheap when nobody sleeps.
  virtual void Wake() = 0;
  /// From now on nobody waits for what this rank sends: nothing is negotiated any more. Frames that
  /// it sends all the same may be lost between hosts, since who passed them on may leave.
  virtual void FinishSending() = 0;
  /// Says goodbye: writes what is queued (bounded by 100 ms) and half-closes, so peers see a clean
  /// end. Later Sends are dropped. Without it, peers see a link that broke. A leader goes on
  /// passing on what others send before it says so, until all ranks have called FinishSending or
  /// are lost, for silence_limit at most; what comes for itself it drops.
  virtual void Close() = 0;
};

}  // namespace hvl::net
