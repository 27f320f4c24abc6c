#include "csrc/collective/tcp.h"

#include <sys/eventfd.h>
#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/collective/exchange_parts.h"
#include "csrc/collective/part.h"
#include "csrc/collective/tcp_transfer.h"
#include "csrc/net/socket.h"

// Terms: N ranks, K bytes in all pieces together. The pieces form one long vector. Slice r is the
// r-th of N nearly equal parts of it, cut between elements; when there are fewer elements than
// ranks, some slices are empty. A chunk is what moves and is reduced in one step.

namespace hvl::collective {
namespace {

// Per peer: enough chunks that the sender can go on while this rank reduces.
constexpr std::size_t kWindowChunks = 4;
// For all peers together, so that many ranks do not need much memory.
constexpr std::size_t kMaxWindowBytes = 16 << 20;
constexpr std::size_t kCacheLineBytes = 64;  // a multiple of every element size

// The element-wise reduction of `bytes` bytes at `offset` of several streams into another one.
void ReduceRange(const tensor::ReduceSpec& spec, std::span<const int> group_ends,
                 std::span<StreamMemory* const> inputs, StreamMemory& output, std::size_t offset,
                 std::size_t bytes) {
  const std::size_t element_bytes = DTypeBytes(spec.dtype);
  std::vector<const void*> pointers(inputs.size());
  while (bytes > 0) {
    const std::span<std::byte> target = output.At(offset);
    std::size_t step = std::min(bytes, target.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const std::span<std::byte> source = inputs[i]->At(offset);
      pointers[i] = source.data();
      step = std::min(step, source.size());
    }
    tensor::Reduce(spec, group_ends, pointers, target.data(),
                   static_cast<std::int64_t>(step / element_bytes));
    offset += step;
    bytes -= step;
  }
}

void CopyUnlessSame(void* output, const void* input, std::size_t bytes) {
  if (output != input && bytes > 0) std::memmove(output, input, bytes);
}

// Whether partial sums may travel in the element type. Not when a later step would see more than
// the type holds: an average of integers, or scale factors before the sum.
bool RingGivesTheSame(const tensor::ReduceSpec& spec) {
  const bool is_float = spec.dtype == DType::kFloat16 || spec.dtype == DType::kBfloat16 ||
                        spec.dtype == DType::kFloat32 || spec.dtype == DType::kFloat64;
  if (spec.prescale != 1.0) return false;
  return is_float || (spec.postscale == 1.0 && spec.op != ReduceOp::kAverage);
}

// What a backend and its parts share.
struct TcpMeans {
  TcpMeans(int rank, std::vector<net::UniqueFd> sockets, net::UniqueFd abort_event, Duration spin)
      : links(rank, std::move(sockets), std::move(abort_event), spin) {}

  TcpLinks links;  // its stop is for any thread, all else for the executor role
  std::vector<std::byte> window_memory;
};

class TcpBackendImpl final : public TcpBackend {
 public:
  TcpBackendImpl(const TcpOptions& options, std::shared_ptr<TcpMeans> means,
                 std::vector<int> world_ranks, std::uint16_t tag)
      : options_(options),
        means_(std::move(means)),
        world_ranks_(std::move(world_ranks)),
        rank_(static_cast<int>(std::ranges::find(world_ranks_, links().rank()) -
                               world_ranks_.begin())),
        tag_(tag) {}

  std::string_view name() const override { return "tcp"; }
  TcpTraffic traffic() const override {
    return {links().payload_bytes_sent.load(), links().header_bytes_sent.load()};
  }
  void Abort(const Status& cause) override { static_cast<void>(links().Stop(cause)); }
  Result<SharedBuffer> Allocate(std::size_t) override {
    return Status(StatusCode::kNotSupported, "the tcp data plane has no shared memory");
  }

  Status Allreduce(std::span<const ReducePiece> pieces, const tensor::ReduceSpec& spec) override;
  Status Broadcast(std::span<const BroadcastPiece> pieces, int root) override;
  Status Allgather(std::span<const GatherPiece> pieces) override;
  Status Barrier() override;
  Status Reducescatter(std::span<const ScatterPiece> pieces,
                       const tensor::ReduceSpec& spec) override;
  Status Alltoall(std::span<const ExchangePiece> pieces) override;
  Result<std::unique_ptr<Backend>> Split(std::span<const int> ranks) override;

 private:
  // An allreduce as streams: the long vector before and after, and where its slices begin.
  struct Vector {
    ScatterList input;
    ScatterList output;
    std::vector<std::size_t> bounds;  // slice r is [bounds[r], bounds[r + 1])
    tensor::ReduceSpec spec;
    TransferHeader header;

    std::size_t SliceBytes(int slice) const {
      const auto s = static_cast<std::size_t>(slice);
      return bounds[s + 1] - bounds[s];
    }
    ScatterList Slice(const ScatterList& list, int slice) const {
      const auto s = static_cast<std::size_t>(slice);
      return list.Slice(bounds[s], bounds[s + 1]);
    }
  };
  // A reduce-scatter as streams.
  struct Parts {
    std::vector<ScatterList> inputs = {};  // this rank's, by the rank that gets the sum
    ScatterList output = {};               // this rank's part
    tensor::ReduceSpec spec = {};
    TransferHeader header = {};
  };

  TcpLinks& links() const { return means_->links; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(world_ranks_.size()); }
  int RankAfter(int distance) const { return ((rank() + distance) % size() + size()) % size(); }

  Transfer NewTransfer(const TransferHeader& header) const {
    return {links(), world_ranks_, header};
  }
  TransferHeader NextHeader(OpKind kind, std::uint64_t bytes, int root = 0) {
    TransferHeader header;
    header.sequence = ++sequence_;
    header.kind = kind;
    header.root = static_cast<std::uint32_t>(world_ranks_[static_cast<std::size_t>(root)]);
    header.bytes = bytes;
    header.part = tag_;
    return header;
  }

  Vector MakeVector(std::span<const ReducePiece> pieces, const tensor::ReduceSpec& spec);
  Status ExchangeAll(Vector& vector);
  Status ReduceScatterInRankOrder(Parts& parts);
  Status ReduceScatterRing(Vector& vector);
  Status AllgatherRing(std::vector<ScatterList> slices, TransferHeader header);

  // One window per peer out of the buffer, which grows once and stays.
  std::vector<RingWindow> Windows(std::size_t count, std::size_t bytes_each);
  std::size_t ChunkBytes() const;

  // Fixed at construction.
  const TcpOptions options_;
  const std::shared_ptr<TcpMeans> means_;  // shared by the backend of the world and its parts
  const std::vector<int> world_ranks_;     // of this backend's ranks
  const int rank_;                         // in this backend
  const std::uint16_t tag_;                // 0 for the world

  // Owned by the executor role.
  std::uint32_t sequence_ = 0;
};

std::size_t TcpBackendImpl::ChunkBytes() const {
  const std::size_t peers = static_cast<std::size_t>(std::max(size() - 1, 1));
  const std::size_t share = kMaxWindowBytes / (kWindowChunks * peers);
  const std::size_t chunk = std::min(options_.chunk_bytes, share);
  return std::max(chunk / kCacheLineBytes, std::size_t{1}) * kCacheLineBytes;
}

std::vector<RingWindow> TcpBackendImpl::Windows(std::size_t count, std::size_t bytes_each) {
  const std::size_t rounded =
      (bytes_each + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes;
  std::vector<std::byte>& memory = means_->window_memory;
  if (memory.size() < count * rounded) memory.resize(count * rounded);
  std::vector<RingWindow> windows;
  for (std::size_t i = 0; i < count; ++i)
    windows.emplace_back(std::span(memory).subspan(i * rounded, rounded));
  return windows;
}

// --- Allreduce ------------------------------------------------------------------------------

TcpBackendImpl::Vector TcpBackendImpl::MakeVector(std::span<const ReducePiece> pieces,
                                                  const tensor::ReduceSpec& spec) {
  Vector vector;
  vector.spec = spec;
  const std::size_t element_bytes = DTypeBytes(spec.dtype);
  for (const ReducePiece& piece : pieces) {
    const std::size_t bytes = static_cast<std::size_t>(piece.element_count) * element_bytes;
    vector.input.Add(piece.input, bytes);
    vector.output.Add(piece.output, bytes);
  }
  const std::size_t elements = vector.input.bytes() / element_bytes;
  const std::size_t ranks = static_cast<std::size_t>(size());
  for (std::size_t r = 0; r <= ranks; ++r) {
    // elements * r / ranks without the overflow of elements * r.
    const std::size_t begin = elements / ranks * r + elements % ranks * r / ranks;
    vector.bounds.push_back(begin * element_bytes);
  }
  vector.header = NextHeader(OpKind::kAllreduce, vector.input.bytes());
  return vector;
}

Status TcpBackendImpl::Allreduce(std::span<const ReducePiece> pieces,
                                 const tensor::ReduceSpec& spec) {
  if (links().stopped()) return links().cause();
  HVL_RETURN_IF_ERROR(tensor::CheckElementwise(spec));
  Vector vector = MakeVector(pieces, spec);
  const std::size_t bytes = vector.input.bytes();
  if (size() == 1) {
    StreamMemory* const own = &vector.input;
    ReduceRange(spec, {}, {&own, 1}, vector.output, 0, bytes);
    return Status::Ok();
  }
  if (bytes == 0) return Status::Ok();
  if (bytes * static_cast<std::size_t>(size() - 1) <= options_.small_bytes)
    return ExchangeAll(vector);
  if (options_.reproducible || !RingGivesTheSame(spec)) {
    Parts parts{
        .output = vector.Slice(vector.output, rank()), .spec = spec, .header = vector.header};
    for (int slice = 0; slice < size(); ++slice)
      parts.inputs.push_back(vector.Slice(vector.input, slice));
    HVL_RETURN_IF_ERROR(ReduceScatterInRankOrder(parts));
  } else {
    HVL_RETURN_IF_ERROR(ReduceScatterRing(vector));
  }
  std::vector<ScatterList> slices;
  for (int slice = 0; slice < size(); ++slice) slices.push_back(vector.Slice(vector.output, slice));
  TransferHeader header = vector.header;
  header.phase = 1;
  return AllgatherRing(std::move(slices), header);
}

// Small vectors: everybody sends everything to everybody and reduces all of it. One step instead of
// N, for (N-1) K bytes per rank instead of 2 (N-1) K / N.
Status TcpBackendImpl::ExchangeAll(Vector& vector) {
  const std::size_t bytes = vector.input.bytes();
  std::vector<RingWindow> windows = Windows(static_cast<std::size_t>(size()), bytes);
  std::deque<ScatterList> outgoing;  // each stream reads at its own place
  std::vector<StreamMemory*> inputs;
  Transfer transfer = NewTransfer(vector.header);
  for (int peer = 0; peer < size(); ++peer) {
    RingWindow& window = windows[static_cast<std::size_t>(peer)];
    inputs.push_back(peer == rank() ? static_cast<StreamMemory*>(&vector.input) : &window);
    if (peer == rank()) continue;
    transfer.Send(peer, outgoing.emplace_back(vector.input), bytes, bytes);
    transfer.Receive(peer, window, bytes, bytes);
  }
  HVL_RETURN_IF_ERROR(transfer.Run());
  ReduceRange(vector.spec, options_.group_ends, inputs, vector.output, 0, bytes);
  return Status::Ok();
}

// Pairwise exchange: each rank sends part j of its inputs to rank j and gets part `rank` of all
// others, chunk by chunk through bounded windows. A chunk that has come from everybody is reduced
// in rank order, so that each element is the same sum whatever the parts, chunks and timing are.
// One step of N-1 messages at the same time; (N-1) K / N bytes out and in per rank, as in a ring.
//
// In place (output == own input) this is safe: only part `rank` is written, and that one is sent to
// nobody.
Status TcpBackendImpl::ReduceScatterInRankOrder(Parts& parts) {
  ScatterList& own_input = parts.inputs[static_cast<std::size_t>(rank())];
  const std::size_t own_bytes = own_input.bytes();
  const std::size_t chunk_bytes = ChunkBytes();
  const std::size_t window_bytes = kWindowChunks * chunk_bytes;
  std::vector<RingWindow> windows = Windows(static_cast<std::size_t>(size()), window_bytes);
  std::vector<StreamMemory*> inputs(static_cast<std::size_t>(size()), &own_input);
  std::vector<std::size_t> incoming;
  Transfer transfer = NewTransfer(parts.header);
  // Everybody starts with another peer, so that nobody is everybody's first.
  for (int distance = 1; distance < size(); ++distance) {
    const int to = RankAfter(distance);
    ScatterList& outgoing = parts.inputs[static_cast<std::size_t>(to)];
    transfer.Send(to, outgoing, outgoing.bytes(), outgoing.bytes());
    const int from = RankAfter(-distance);
    RingWindow& window = windows[static_cast<std::size_t>(from)];
    inputs[static_cast<std::size_t>(from)] = &window;
    incoming.push_back(
        transfer.Receive(from, window, own_bytes, std::min(own_bytes, window_bytes)));
  }
  std::size_t reduced = 0;
  return transfer.Run([this, &parts, &transfer, &inputs, &incoming, &reduced, own_bytes,
                       chunk_bytes, window_bytes] {
    std::size_t arrived = own_bytes;
    for (const std::size_t stream : incoming) arrived = std::min(arrived, transfer.done(stream));
    while (reduced < own_bytes) {
      const std::size_t step = std::min(chunk_bytes, own_bytes - reduced);
      if (arrived - reduced < step) break;
      ReduceRange(parts.spec, options_.group_ends, inputs, parts.output, reduced, step);
      reduced += step;
    }
    for (const std::size_t stream : incoming)
      transfer.SetLimit(stream, std::min(own_bytes, reduced + window_bytes));
  });
}

// The ring of Baidu's allreduce (A. Gibiansky, "Bringing HPC Techniques to Deep Learning", 2017),
// after P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", J. Parallel Distrib. Comput. 69 (2009). In step s = 0 .. N-2 rank r sends the
// partial sum of slice r-s-1 to its right neighbour, receives that of slice r-s-2 from its left
// one, and adds its own part. The last slice that arrives is slice r, then complete.
//
// N-1 steps, (N-1) K / N bytes per rank. Here the steps flow into one another: what comes in is
// slices r-2, r-3, .., r as one stream; what goes out is slice r-1, then all that came in and was
// added to, but the last slice. The partial sum of slice j has the order j+1, j+2, .., j: it
// depends on the slice, hence on the place of an element in the fused vector.
Status TcpBackendImpl::ReduceScatterRing(Vector& vector) {
  ScatterList own_input;  // beside the incoming stream
  ScatterList target;
  std::vector<std::size_t> ends;  // of the slices in the incoming stream
  for (int s = 2; s <= size(); ++s) {
    own_input.Append(vector.Slice(vector.input, RankAfter(-s)));
    target.Append(vector.Slice(vector.output, RankAfter(-s)));
    ends.push_back(target.bytes());
  }
  const std::size_t in_bytes = target.bytes();
  const std::size_t last_begins = in_bytes - vector.SliceBytes(rank());
  ScatterList outgoing = vector.Slice(vector.input, RankAfter(-1));
  const std::size_t first_bytes = outgoing.bytes();
  outgoing.Append(target.Slice(0, last_begins));

  // Partial sums stay plain; the last addition also divides and scales.
  tensor::ReduceSpec partial = vector.spec;
  partial.postscale = 1.0;
  if (partial.op == ReduceOp::kAverage) partial.op = ReduceOp::kSum;

  const std::size_t element_bytes = DTypeBytes(vector.spec.dtype);
  const std::size_t chunk_bytes = ChunkBytes();
  const std::size_t window_bytes = kWindowChunks * chunk_bytes;
  std::vector<RingWindow> windows = Windows(1, window_bytes);
  StreamMemory* const inputs[] = {&windows.front(), &own_input};
  Transfer transfer = NewTransfer(vector.header);
  const std::size_t in =
      transfer.Receive(RankAfter(-1), windows.front(), in_bytes, std::min(in_bytes, window_bytes));
  const std::size_t out = transfer.Send(RankAfter(1), outgoing, outgoing.bytes(), first_bytes);
  std::size_t reduced = 0;
  std::size_t slice = 0;  // of the incoming stream, where `reduced` is
  return transfer.Run([&vector, &transfer, &partial, &inputs, &target, &ends, &reduced, &slice, in,
                       out, in_bytes, first_bytes, last_begins, element_bytes, chunk_bytes,
                       window_bytes] {
    const std::size_t arrived = transfer.done(in) / element_bytes * element_bytes;
    while (reduced < arrived) {
      while (reduced == ends[slice]) ++slice;
      // A chunk ends with its slice: what follows may be waiting, around the ring, for this one.
      const std::size_t step = std::min(chunk_bytes, ends[slice] - reduced);
      if (arrived - reduced < step) break;
      const bool last = slice + 1 == ends.size();
      ReduceRange(last ? vector.spec : partial, {}, inputs, target, reduced, step);
      reduced += step;
    }
    transfer.SetLimit(in, std::min(in_bytes, reduced + window_bytes));
    transfer.SetLimit(out, first_bytes + std::min(reduced, last_begins));
  });
}

// Rank r has slice r and passes to its right neighbour slice r, then every slice that comes from
// the left, but the one that the right neighbour started with. N-1 steps that flow into one
// another byte by byte; K - |slice| bytes out and in per rank.
Status TcpBackendImpl::AllgatherRing(std::vector<ScatterList> slices, TransferHeader header) {
  ScatterList outgoing;
  ScatterList incoming;
  for (int s = 0; s + 1 < size(); ++s) {
    outgoing.Append(slices[static_cast<std::size_t>(RankAfter(-s))]);
    incoming.Append(slices[static_cast<std::size_t>(RankAfter(-s - 1))]);
  }
  const std::size_t own_bytes = slices[static_cast<std::size_t>(rank())].bytes();
  Transfer transfer = NewTransfer(header);
  const std::size_t out = transfer.Send(RankAfter(1), outgoing, outgoing.bytes(),
                                        std::min(own_bytes, outgoing.bytes()));
  const std::size_t in =
      transfer.Receive(RankAfter(-1), incoming, incoming.bytes(), incoming.bytes());
  return transfer.Run([&transfer, &outgoing, out, in, own_bytes] {
    transfer.SetLimit(out, std::min(outgoing.bytes(), own_bytes + transfer.done(in)));
  });
}

Status TcpBackendImpl::Reducescatter(std::span<const ScatterPiece> pieces,
                                     const tensor::ReduceSpec& spec) {
  if (links().stopped()) return links().cause();
  HVL_RETURN_IF_ERROR(tensor::CheckElementwise(spec));
  Parts parts{.inputs = std::vector<ScatterList>(static_cast<std::size_t>(size())), .spec = spec};
  std::uint64_t total_bytes = 0;
  for (const ScatterPiece& piece : pieces) {
    HVL_CHECK(piece.rank_elements.size() == parts.inputs.size(), "one part per rank");
    std::size_t offset = 0;
    for (std::size_t owner = 0; owner < parts.inputs.size(); ++owner) {
      const auto elements = static_cast<std::size_t>(piece.rank_elements[owner]);
      const std::size_t bytes = elements * DTypeBytes(spec.dtype);
      if (bytes == 0) continue;  // the input may be null
      parts.inputs[owner].Add(static_cast<const std::byte*>(piece.input) + offset, bytes);
      if (static_cast<int>(owner) == rank()) parts.output.Add(piece.output, bytes);
      offset += bytes;
    }
    total_bytes += offset;
  }
  parts.header = NextHeader(OpKind::kReducescatter, total_bytes);
  if (size() == 1) {
    StreamMemory* const own = parts.inputs.data();
    ReduceRange(spec, {}, {&own, 1}, parts.output, 0, parts.output.bytes());
    return Status::Ok();
  }
  return total_bytes == 0 ? Status::Ok() : ReduceScatterInRankOrder(parts);
}

// --- The others -----------------------------------------------------------------------------

Status TcpBackendImpl::Allgather(std::span<const GatherPiece> pieces) {
  if (links().stopped()) return links().cause();
  std::vector<ScatterList> slices(static_cast<std::size_t>(size()));  // by contributing rank
  std::uint64_t total_bytes = 0;
  for (const GatherPiece& piece : pieces) {
    HVL_CHECK(piece.rank_bytes.size() == slices.size(), "one contribution per rank");
    std::size_t offset = 0;
    for (std::size_t r = 0; r < slices.size(); ++r) {
      std::byte* const place = static_cast<std::byte*>(piece.output) + offset;
      if (static_cast<int>(r) == rank()) CopyUnlessSame(place, piece.input, piece.rank_bytes[r]);
      slices[r].Add(place, piece.rank_bytes[r]);
      offset += piece.rank_bytes[r];
    }
    total_bytes += offset;
  }
  const TransferHeader header = NextHeader(OpKind::kAllgather, total_bytes);
  if (size() == 1 || total_bytes == 0) return Status::Ok();
  return AllgatherRing(std::move(slices), header);
}

// Everybody sends to everybody, straight from inputs to outputs: one step of at most N-1 messages,
// the bytes that have to move and no more.
Status TcpBackendImpl::Alltoall(std::span<const ExchangePiece> pieces) {
  if (links().stopped()) return links().cause();
  const auto own = static_cast<std::size_t>(rank());
  std::vector<ScatterList> outgoing(static_cast<std::size_t>(size()));
  std::vector<ScatterList> incoming(outgoing.size());
  std::uint64_t total_bytes = 0;
  for (const ExchangePiece& piece : pieces) {
    const std::vector<ExchangePart> parts = PartsByPeer(piece, rank(), size());
    for (std::size_t peer = 0; peer < parts.size(); ++peer) {
      outgoing[peer].Add(parts[peer].outgoing.data(), parts[peer].outgoing.size());
      incoming[peer].Add(parts[peer].incoming.data(), parts[peer].incoming.size());
    }
    const ExchangePart& kept = parts[own];
    CopyUnlessSame(kept.incoming.data(), kept.outgoing.data(), kept.outgoing.size());
    total_bytes = std::accumulate(piece.bytes.begin(), piece.bytes.end(), total_bytes);
  }
  Transfer transfer = NewTransfer(NextHeader(OpKind::kAlltoall, total_bytes));
  for (int distance = 1; distance < size(); ++distance) {
    const int to = RankAfter(distance);
    ScatterList& sent = outgoing[static_cast<std::size_t>(to)];
    if (sent.bytes() > 0) transfer.Send(to, sent, sent.bytes(), sent.bytes());
    const int from = RankAfter(-distance);
    ScatterList& received = incoming[static_cast<std::size_t>(from)];
    if (received.bytes() > 0) transfer.Receive(from, received, received.bytes(), received.bytes());
  }
  return transfer.Run();
}

// Every rank passes on what it gets as soon as it gets it. Small: a binomial tree, ceil(log2 N)
// steps. Large: a chain, where every link carries the vector once and all links are busy at the
// same time: about K / bandwidth, however many ranks. (N-1) K bytes in total both ways.
//
// v is the rank counted from the root. In the tree, the parent of v is v without its lowest bit
// that is set, and its children are v plus each power of two below that bit.
Status TcpBackendImpl::Broadcast(std::span<const BroadcastPiece> pieces, int root) {
  if (links().stopped()) return links().cause();
  HVL_CHECK(root >= 0 && root < size(), Format("root {} of {}", root, size()));
  const bool is_root = rank() == root;
  ScatterList vector;
  for (const BroadcastPiece& piece : pieces) {
    if (is_root) CopyUnlessSame(piece.output, piece.input, piece.bytes);
    vector.Add(piece.output, piece.bytes);
  }
  const TransferHeader header = NextHeader(OpKind::kBroadcast, vector.bytes(), root);
  if (size() == 1 || vector.bytes() == 0) return Status::Ok();

  const int v = RankAfter(-root);
  const bool chain = vector.bytes() > options_.small_bytes;
  const int lowest_bit = v & -v;
  const int parent = chain ? v - 1 : v - lowest_bit;
  std::vector<int> children;
  if (chain && v + 1 < size()) children.push_back(v + 1);
  if (!chain) {
    int bit = is_root ? 1 : lowest_bit;
    while (is_root && bit < size()) bit *= 2;
    // The largest subtree first: it has the longest way.
    for (bit /= 2; bit > 0; bit /= 2)
      if (v + bit < size()) children.push_back(v + bit);
  }

  const auto real_rank = [this, root](int relative) { return (relative + root) % size(); };
  std::deque<ScatterList> outgoing;
  std::vector<std::size_t> out;
  Transfer transfer = NewTransfer(header);
  std::size_t in = 0;
  if (!is_root) in = transfer.Receive(real_rank(parent), vector, vector.bytes(), vector.bytes());
  for (const int child : children)
    out.push_back(transfer.Send(real_rank(child), outgoing.emplace_back(vector), vector.bytes(),
                                is_root ? vector.bytes() : 0));
  return transfer.Run([&transfer, &out, in, is_root] {
    if (is_root) return;
    for (const std::size_t stream : out) transfer.SetLimit(stream, transfer.done(in));
  });
}

// Dissemination (D. Hensgen, R. Finkel, U. Manber, "Two algorithms for barrier synchronization",
// 1988): in round k every rank tells the one 2^k to the right and hears from the one 2^k to the
// left. After ceil(log2 N) rounds everybody has heard of everybody.
Status TcpBackendImpl::Barrier() {
  if (links().stopped()) return links().cause();
  TransferHeader header = NextHeader(OpKind::kBarrier, 0);
  ScatterList nothing;
  for (int distance = 1; distance < size(); distance *= 2) {
    Transfer transfer = NewTransfer(header);
    transfer.Send(RankAfter(distance), nothing, 0, 0);
    transfer.Receive(RankAfter(-distance), nothing, 0, 0);
    HVL_RETURN_IF_ERROR(transfer.Run());
    ++header.phase;
  }
  return Status::Ok();
}

Result<std::unique_ptr<Backend>> TcpBackendImpl::Split(std::span<const int> ranks) {
  HVL_RETURN_IF_ERROR(CheckPart(ranks, rank(), size()));
  std::vector<int> members = WorldRanks(ranks, world_ranks_);
  const std::uint16_t tag = PartTag(members);
  TcpOptions options = options_;
  options.group_ends = PartGroupEnds(ranks, options_.group_ends);
  std::unique_ptr<Backend> part =
      std::make_unique<TcpBackendImpl>(options, means_, std::move(members), tag);
  return part;
}

}  // namespace

Result<std::unique_ptr<TcpBackend>> CreateTcpBackend(net::Mesh& mesh, TcpOptions options) {
  net::UniqueFd abort_event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!abort_event.valid()) return net::ErrnoStatus("cannot create the abort event");
  HVL_ASSIGN_OR_RETURN(std::vector<net::UniqueFd> sockets, mesh.ConnectData());
  std::vector<int> ranks(sockets.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  auto means = std::make_shared<TcpMeans>(mesh.rank(), std::move(sockets), std::move(abort_event),
                                          options.spin);
  return std::unique_ptr<TcpBackend>(std::make_unique<TcpBackendImpl>(
      options, std::move(means), std::move(ranks), std::uint16_t{0}));
}

}  // namespace hvl::collective
