#include "csrc/collective/tcp.h"

#include <sys/eventfd.h>
#include <cstring>
#include <numeric>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/collective/cuts.h"
#include "csrc/collective/exchange_grid.h"
#include "csrc/collective/exchange_parts.h"
#include "csrc/collective/part.h"
#include "csrc/collective/tcp_group.h"
#include "csrc/collective/tcp_move.h"
#include "csrc/collective/tcp_reduce.h"
#include "csrc/collective/tcp_transfer.h"
#include "csrc/collective/widened.h"
#include "csrc/net/socket.h"

// Turns the pieces of operations into streams and chooses the algorithm. The pieces of an operation
// form one long vector.

namespace hvl::collective {
namespace {

void CopyUnlessSame(void* output, const void* input, std::size_t bytes) {
  if (output != input && bytes > 0) std::memmove(output, input, bytes);
}

class TcpBackendImpl final : public TcpBackend {
 public:
  explicit TcpBackendImpl(TcpGroup group) : group_(std::move(group)) {}

  std::string_view name() const override { return "tcp"; }
  TcpTraffic traffic() const override {
    return {.payload_bytes_sent = links().payload_bytes_sent.load(),
            .header_bytes_sent = links().header_bytes_sent.load(),
            .connections = links().connected()};
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
  TcpLinks& links() const { return group_.links(); }
  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  /// For `reduction`, which has all but a header.
  ReduceWay WayOf(const Reduction& reduction) const;
  Status Run(ReduceWay way, OpKind kind, Reduction& reduction);

  TcpGroup group_;
};

ReduceWay TcpBackendImpl::WayOf(const Reduction& reduction) const {
  if (size() == 1 || reduction.bytes() == 0) return ReduceWay::kGather;  // as good as any
  return ChooseReduceWay({.ranks = size(),
                          .bytes = reduction.bytes(),
                          .everywhere = reduction.everywhere,
                          .spec = reduction.spec},
                         group_.options());
}

Status TcpBackendImpl::Run(ReduceWay way, OpKind kind, Reduction& reduction) {
  reduction.header = group_.NextHeader(kind, reduction.bytes());
  if (size() == 1) {
    ReduceAlone(reduction);
    return Status::Ok();
  }
  return reduction.bytes() == 0 ? Status::Ok() : Reduce(group_, way, reduction);
}

Status TcpBackendImpl::Allreduce(std::span<const ReducePiece> pieces,
                                 const tensor::ReduceSpec& spec) {
  if (links().stopped()) return links().cause();
  HVL_RETURN_IF_ERROR(tensor::CheckElementwise(spec));
  const std::size_t element_bytes = DTypeBytes(spec.dtype);
  Reduction reduction{.spec = spec};
  for (const ReducePiece& piece : pieces) {
    const std::size_t bytes = static_cast<std::size_t>(piece.element_count) * element_bytes;
    reduction.input.Add(piece.input, bytes);
    reduction.output.Add(piece.output, bytes);
  }
  const ReduceWay way = WayOf(reduction);
  if (way == ReduceWay::kWidened)
    return AllreduceWidened(*this, pieces, spec, GroupsOf(size(), group_.options()));
  reduction.bounds = EvenBounds(reduction.bytes(), element_bytes, static_cast<std::size_t>(size()));
  return Run(way, OpKind::kAllreduce, reduction);
}

Status TcpBackendImpl::Reducescatter(std::span<const ScatterPiece> pieces,
                                     const tensor::ReduceSpec& spec) {
  if (links().stopped()) return links().cause();
  HVL_RETURN_IF_ERROR(tensor::CheckElementwise(spec));
  Reduction reduction{.everywhere = false, .spec = spec};
  reduction.bounds.push_back(0);
  for (const auto& part : PartsByOwner(pieces, rank(), size(), DTypeBytes(spec.dtype))) {
    for (const ReducePiece& piece : part) {
      const std::size_t bytes =
          static_cast<std::size_t>(piece.element_count) * DTypeBytes(spec.dtype);
      reduction.input.Add(piece.input, bytes);
      if (std::ssize(reduction.bounds) == rank() + 1) reduction.output.Add(piece.output, bytes);
    }
    reduction.bounds.push_back(reduction.bytes());
  }
  const ReduceWay way = WayOf(reduction);
  if (way == ReduceWay::kWidened)
    return ReducescatterWidened(*this, rank(), size(), pieces, spec,
                                GroupsOf(size(), group_.options()));
  return Run(way, OpKind::kReducescatter, reduction);
}

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
  const TransferHeader header = group_.NextHeader(OpKind::kAllgather, total_bytes);
  if (size() == 1 || total_bytes == 0) return Status::Ok();
  return total_bytes <= group_.options().small_bytes ? GatherByDoubling(group_, slices, header)
                                                     : GatherAroundRing(group_, slices, header);
}

Status TcpBackendImpl::Alltoall(std::span<const ExchangePiece> pieces) {
  if (links().stopped()) return links().cause();
  const auto own = static_cast<std::size_t>(rank());
  std::vector<ScatterList> outgoing(static_cast<std::size_t>(size()));
  std::vector<ScatterList> incoming(outgoing.size());
  std::uint64_t total_bytes = 0;
  const bool all_pairs = size() <= group_.options().most_pairwise_ranks;
  std::vector<std::size_t> pair_bytes;
  if (!all_pairs) pair_bytes.resize(outgoing.size() * outgoing.size());
  for (const ExchangePiece& piece : pieces) {
    const std::vector<ExchangePart> parts = PartsByPeer(piece, rank(), size());
    for (std::size_t pair = 0; pair < pair_bytes.size(); ++pair)
      pair_bytes[pair] += piece.bytes[pair];
    for (std::size_t peer = 0; peer < parts.size(); ++peer) {
      outgoing[peer].Add(parts[peer].outgoing.data(), parts[peer].outgoing.size());
      incoming[peer].Add(parts[peer].incoming.data(), parts[peer].incoming.size());
    }
    const ExchangePart& kept = parts[own];
    CopyUnlessSame(kept.incoming.data(), kept.outgoing.data(), kept.outgoing.size());
    total_bytes = std::accumulate(piece.bytes.begin(), piece.bytes.end(), total_bytes);
  }
  const TransferHeader header = group_.NextHeader(OpKind::kAlltoall, total_bytes);
  if (all_pairs) return ExchangeAll(group_, outgoing, incoming, header);
  const ExchangeGrid grid(size(), group_.options().group_ends);
  return ExchangeByGrid(group_, grid, pair_bytes, outgoing, incoming, header);
}

Status TcpBackendImpl::Broadcast(std::span<const BroadcastPiece> pieces, int root) {
  if (links().stopped()) return links().cause();
  HVL_CHECK(root >= 0 && root < size(), Format("root {} of {}", root, size()));
  ScatterList vector;
  for (const BroadcastPiece& piece : pieces) {
    if (rank() == root) CopyUnlessSame(piece.output, piece.input, piece.bytes);
    vector.Add(piece.output, piece.bytes);
  }
  const TransferHeader header = group_.NextHeader(OpKind::kBroadcast, vector.bytes(), root);
  if (size() == 1 || vector.bytes() == 0) return Status::Ok();
  return vector.bytes() <= group_.options().small_bytes
             ? BroadcastDownTree(group_, vector, root, header)
             : BroadcastAlongChain(group_, vector, root, header);
}

Status TcpBackendImpl::Barrier() {
  if (links().stopped()) return links().cause();
  return Meet(group_, group_.NextHeader(OpKind::kBarrier, 0));
}

Result<std::unique_ptr<Backend>> TcpBackendImpl::Split(std::span<const int> ranks) {
  HVL_RETURN_IF_ERROR(CheckPart(ranks, rank(), size()));
  std::vector<int> members = WorldRanks(ranks, group_.world_ranks());
  const std::uint16_t tag = PartTag(members);
  TcpOptions options = group_.options();
  options.group_ends = PartGroupEnds(ranks, options.group_ends);
  std::unique_ptr<Backend> part =
      std::make_unique<TcpBackendImpl>(TcpGroup(options, group_.means(), std::move(members), tag));
  return part;
}

}  // namespace

Result<std::unique_ptr<TcpBackend>> CreateTcpBackend(std::unique_ptr<net::DataLinks> links,
                                                     const TcpOptions& options) {
  net::UniqueFd abort_event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!abort_event.valid()) return net::ErrnoStatus("cannot create the abort event");
  std::vector<int> ranks(static_cast<std::size_t>(links->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  auto means = std::make_shared<TcpMeans>(std::move(links), std::move(abort_event), options.spin);
  return std::unique_ptr<TcpBackend>(std::make_unique<TcpBackendImpl>(
      TcpGroup(options, std::move(means), std::move(ranks), std::uint16_t{0})));
}

Result<std::unique_ptr<TcpBackend>> CreateTcpBackend(net::Mesh& mesh, const TcpOptions& options) {
  return CreateTcpBackend(mesh.TakeDataLinks(), options);
}

}  // namespace hvl::collective
