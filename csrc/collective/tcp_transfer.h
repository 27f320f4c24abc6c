// Moves bytes over the data sockets of a group of ranks, all directions at the same time. The plain
// machinery below the algorithms of tcp_reduce.cc and tcp_move.cc.
#pragma once

#include <poll.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/mutex.h"
#include "csrc/net/data_links.h"
#include "csrc/net/fd.h"
#include "horovodlite/status.h"
#include "horovodlite/types.h"

namespace hvl::collective {

/// Where the bytes of a stream lie in memory, by their offset in the stream.
class StreamMemory {
 public:
  virtual ~StreamMemory() = default;
  /// The memory from `offset` on, as far as it is contiguous; not empty inside the stream.
  virtual std::span<std::byte> At(std::size_t offset) = 0;
};

/// Pieces of memory, one after the other. Reading it in order costs no search.
class ScatterList final : public StreamMemory {
 public:
  /// `data` is not written when the list is only sent from.
  void Add(const void* data, std::size_t bytes);
  void Append(const ScatterList& other);
  /// The part [begin, end) as a list of its own.
  ScatterList Slice(std::size_t begin, std::size_t end) const;

  std::size_t bytes() const { return bytes_; }
  std::span<std::byte> At(std::size_t offset) override;

 private:
  struct Piece {
    std::byte* data;
    std::size_t begin;  // offset in the stream
    std::size_t bytes;
  };

  std::vector<Piece> pieces_;  // none is empty
  std::size_t bytes_ = 0;
  std::size_t last_ = 0;  // where At found the previous offset
};

/// A bounded buffer through which a longer stream passes; offset o lies at o modulo its size.
class RingWindow final : public StreamMemory {
 public:
  explicit RingWindow(std::span<std::byte> buffer) : buffer_(buffer) {}
  std::span<std::byte> At(std::size_t offset) override {
    return buffer_.subspan(offset % buffer_.size());
  }

 private:
  std::span<std::byte> buffer_;
};

/// The first `first_bytes` bytes of one memory, then all of another. Both must outlive it.
class JoinedMemory final : public StreamMemory {
 public:
  JoinedMemory(StreamMemory& first, std::size_t first_bytes, StreamMemory& second)
      : first_(first), first_bytes_(first_bytes), second_(second) {}
  std::span<std::byte> At(std::size_t offset) override {
    if (offset >= first_bytes_) return second_.At(offset - first_bytes_);
    const std::span<std::byte> part = first_.At(offset);
    return part.first(std::min(part.size(), first_bytes_ - offset));
  }

 private:
  StreamMemory& first_;
  const std::size_t first_bytes_;
  StreamMemory& second_;
};

/// Opens every stream of a transfer, so that both ends notice when they do not do the same.
struct TransferHeader {
  static constexpr std::size_t kBytes = 16;

  std::uint32_t sequence = 0;  ///< counts the operations of this backend
  OpKind kind = OpKind::kBarrier;
  std::uint8_t phase = 0;   ///< of the operation
  std::uint32_t root = 0;   ///< broadcast only: rank of the world
  std::uint64_t bytes = 0;  ///< of the whole operation, below 2^48
  std::uint16_t part = 0;   ///< PartTag of the backend's ranks; 0 = the world

  bool operator==(const TransferHeader&) const = default;
  std::string ToString() const;
  std::array<std::byte, kBytes> Encode() const;
  static TransferHeader Decode(std::span<const std::byte, kBytes> bytes);
};

/// The connections to ranks of the world, the reason why they must not be used any more, and what
/// was sent.
class TcpLinks {
 public:
  TcpLinks(std::unique_ptr<net::DataLinks> data, net::UniqueFd abort_event, Duration spin)
      : spin_(spin), data_(std::move(data)), abort_event_(std::move(abort_event)) {}

  int rank() const { return data_->rank(); }
  int socket(int peer) const { return data_->socket(peer); }
  int connected() const { return data_->connected(); }
  int abort_event() const { return abort_event_.get(); }
  Duration spin() const { return spin_; }

  /// Blocks until all of `peers` are connected. An error is final, as that of a transfer.
  Status Connect(std::span<const int> peers) {
    const Status status = data_->Connect(peers, abort_event());
    return status.ok() ? status : Stop(status);
  }

  /// Any thread: ends the transfer that runs and all later ones. Returns the first cause.
  Status Stop(const Status& cause);
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }
  Status cause() const;

  // Counted by the thread that runs transfers, read by any.
  std::atomic<std::uint64_t> payload_bytes_sent = 0;
  std::atomic<std::uint64_t> header_bytes_sent = 0;

 private:
  const Duration spin_;
  const std::unique_ptr<net::DataLinks> data_;  // owned by the thread that runs transfers
  const net::UniqueFd abort_event_;
  std::atomic<bool> stopped_ = false;
  mutable Mutex mutex_;
  Status cause_ HVL_GUARDED_BY(mutex_);
};

/// One set of streams that run at the same time, at most one per peer and direction. Every stream
/// moves as fast as its socket and its limit let it; limits let a stream wait for another one
/// (forward only what has arrived, receive only what has room).
class Transfer {
 public:
  /// `world_ranks` of the peers, as the calls below number them; must outlive Run.
  Transfer(TcpLinks& links, std::span<const int> world_ranks, const TransferHeader& header)
      : links_(links), world_ranks_(world_ranks), header_(header) {}

  /// `memory` must outlive Run. Returns the stream's index for SetLimit and done.
  std::size_t Send(int peer, StreamMemory& memory, std::size_t bytes, std::size_t limit);
  std::size_t Receive(int peer, StreamMemory& memory, std::size_t bytes, std::size_t limit);

  /// Payload bytes that this stream may move so far, at most all. Grows only.
  void SetLimit(std::size_t stream, std::size_t limit) {
    streams_[stream].limit = std::min(limit, streams_[stream].bytes);
  }
  /// Payload bytes that it has moved.
  std::size_t done(std::size_t stream) const {
    const std::size_t moved = streams_[stream].moved;
    return moved - std::min(moved, TransferHeader::kBytes);
  }

  /// Connects to those peers that are not connected, then blocks until all streams are complete.
  /// `on_progress` is called after bytes have moved and may raise limits. Errors: the cause of an
  /// abort; Unavailable naming a lost rank; Internal when a peer does something else.
  Status Run(const std::function<void()>& on_progress = [] {});

 private:
  struct Stream {
    int peer = 0;  // rank of the world
    bool sends = false;
    bool blocked = false;  // until poll says otherwise
    StreamMemory* memory = nullptr;
    std::size_t bytes = 0;
    std::size_t limit = 0;
    std::size_t moved = 0;  // header included
    std::array<std::byte, TransferHeader::kBytes> header{};

    bool complete() const { return moved == bytes + TransferHeader::kBytes; }
    bool may_move() const { return moved < limit + TransferHeader::kBytes; }
  };

  std::size_t Add(bool sends, int peer, StreamMemory& memory, std::size_t bytes, std::size_t limit);
  Status ConnectPeers();
  Result<bool> MoveAll();
  Result<bool> Move(Stream& stream);
  Status CheckHeader(const Stream& stream) const;
  Status Lost(const Stream& stream, const std::string& how) const;
  void Wait();

  TcpLinks& links_;
  const std::span<const int> world_ranks_;
  const TransferHeader header_;
  std::vector<Stream> streams_;
  std::vector<pollfd> polled_;  // the abort event, then the streams that wait
};

}  // namespace hvl::collective
