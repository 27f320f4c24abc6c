#include "csrc/collective/two_level.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <new>
#include <numeric>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "csrc/base/check.h"
#include "csrc/base/mutex.h"
#include "csrc/base/str.h"
#include "csrc/collective/cuts.h"
#include "csrc/collective/host_layout.h"
#include "csrc/collective/local_layout.h"
#include "csrc/collective/part.h"
#include "csrc/collective/stage_thread.h"
#include "csrc/collective/widened.h"

// Terms: M hosts with the ranks of this backend, N ranks, K bytes in all pieces together, C columns
// (host_layout.h). Within a host, work is done by `local`, a backend of the ranks of this host;
// between hosts by `wide`, one of all ranks over sockets, and by parts of it: `column` has one rank
// per host.
//
// Nothing is packed: what the parts of an operation get are scatter lists of places in the tensors
// themselves.
//
// Two shapes are not two levels: all ranks on one host, where `local` does it all, and no two ranks
// on the same host, where `wide` does.

namespace hvl::collective {
namespace {

using tensor::ReduceSpec;

// Up to here one column carries all: as many bytes as several, in fewer messages.
constexpr std::size_t kOneColumnBytes = 8192;

std::size_t AsSize(int number) { return static_cast<std::size_t>(number); }

std::size_t Bytes(std::int64_t elements, std::size_t element_bytes) {
  return static_cast<std::size_t>(elements) * element_bytes;
}

// A vector of bytes, cut into nearly equal parts at cache lines, and so between elements.
struct Cut {
  std::size_t bytes;
  int parts;

  std::size_t Begin(int part) const {
    if (part == parts) return bytes;
    const std::size_t count = AsSize(parts);
    const std::size_t number = AsSize(part);
    // bytes * number / count without the overflow of the product.
    return RoundDown(bytes / count * number + bytes % count * number / count, kLineBytes);
  }
};

template <typename Size>
std::remove_const_t<Size> Sum(std::span<Size> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::remove_const_t<Size>{0});
}

std::byte* At(void* memory, std::size_t offset) {
  return memory == nullptr ? nullptr : static_cast<std::byte*>(memory) + offset;
}
const std::byte* At(const void* memory, std::size_t offset) {
  return memory == nullptr ? nullptr : static_cast<const std::byte*>(memory) + offset;
}

// Lists of sizes that pieces point to; each has the same length.
template <typename Size>
class SizeLists {
 public:
  SizeLists(std::size_t lists, std::size_t length) : length_(length), sizes_(lists * length) {}

  /// The next one, all zero.
  std::span<Size> Next() {
    HVL_CHECK(used_ < sizes_.size(), "more lists than said");
    used_ += length_;
    return std::span<Size>(sizes_).subspan(used_ - length_, length_);
  }

 private:
  const std::size_t length_;
  std::vector<Size> sizes_;
  std::size_t used_ = 0;
};

// What a backend and its parts share.
class TwoLevelMeans {
 public:
  /// `plane_name` outlives it. `levels_overlap`: two threads may use the two levels at the same
  /// time.
  TwoLevelMeans(std::string_view plane_name, std::unique_ptr<TcpBackend> all_ranks,
                std::unique_ptr<Backend> local_ranks, std::vector<int> hosts_by_rank, int own_rank,
                std::size_t bytes_per_block, bool levels_overlap)
      : name(plane_name),
        tcp(std::move(all_ranks)),
        local(std::move(local_ranks)),
        hosts(std::move(hosts_by_rank)),
        rank(own_rank),
        block_bytes(bytes_per_block),
        overlaps(levels_overlap) {}

  // Both levels get the same cause, whoever comes first.
  void Abort(const Status& cause) {
    Status first;
    {
      const MutexLock lock(mutex_);
      if (cause_.ok()) cause_ = cause;
      first = cause_;
    }
    local->Abort(first);
    tcp->Abort(first);
  }

  const std::string_view name;
  const std::unique_ptr<TcpBackend> tcp;
  const std::unique_ptr<Backend> local;  // may be a part of `tcp`
  const std::vector<int> hosts;          // of all ranks
  const int rank;                        // of the world
  const std::size_t block_bytes;
  const bool overlaps;

 private:
  Mutex mutex_;
  Status cause_ HVL_GUARDED_BY(mutex_);
};

std::vector<int> HostsOf(std::span<const int> world_ranks, std::span<const int> hosts) {
  std::vector<int> of_ranks;
  for (const int rank : world_ranks) of_ranks.push_back(hosts[AsSize(rank)]);
  return of_ranks;
}

class TwoLevelImpl final : public TwoLevelBackend {
 public:
  TwoLevelImpl(std::shared_ptr<TwoLevelMeans> means, std::vector<int> world_ranks)
      : means_(std::move(means)),
        world_ranks_(std::move(world_ranks)),
        layout_(HostsOf(world_ranks_, means_->hosts)),
        rank_(
            static_cast<int>(std::ranges::find(world_ranks_, means_->rank) - world_ranks_.begin())),
        host_(layout_.HostOf(rank_)),
        first_(layout_.First(host_)) {}

  /// Of the world.
  Status UseAllRanks();
  /// Of fewer ranks, or in another order of operations.
  Status UseParts();

  std::string_view name() const override { return means_->name; }
  TcpTraffic traffic() const override { return means_->tcp->traffic(); }
  Status Allreduce(std::span<const ReducePiece> pieces, const ReduceSpec& spec) override;
  Status Broadcast(std::span<const BroadcastPiece> pieces, int root) override;
  Status Allgather(std::span<const GatherPiece> pieces) override;
  Status Barrier() override;
  Status Reducescatter(std::span<const ScatterPiece> pieces, const ReduceSpec& spec) override;
  Status Alltoall(std::span<const ExchangePiece> pieces) override;
  Result<std::unique_ptr<Backend>> Split(std::span<const int> ranks) override;
  void Abort(const Status& cause) override { means_->Abort(cause); }
  Result<SharedBuffer> Allocate(std::size_t bytes) override {
    return means_->local->Allocate(bytes);
  }

 private:
  // An allreduce, as the three calls get it.
  struct Sliced {
    SizeLists<std::int64_t> elements;  // what the others point to
    SizeLists<std::size_t> bytes;
    std::vector<ScatterPiece> scattered = {};
    std::vector<ReducePiece> own = {};  // this rank's slice
    std::vector<GatherPiece> gathered = {};
  };

  bool on_one_host() const { return layout_.hosts() == 1; }
  bool one_per_host() const { return layout_.hosts() == layout_.ranks(); }
  /// The backend that does everything, if the shape is not two levels.
  Backend* only() const {
    if (on_one_host()) return local_;
    return one_per_host() ? wide_ : nullptr;
  }
  int local_ranks() const { return layout_.RanksOn(host_); }
  /// Where the rank of `column` on this host stands in `local`.
  std::size_t LocalMember(int column) const {
    return AsSize(layout_.Member(column, host_) - first_);
  }

  Status JoinColumn();
  int ColumnsFor(std::size_t bytes) const {
    return bytes <= kOneColumnBytes ? 1 : layout_.columns();
  }
  /// Cuts the pieces into one slice per part of `cut`, which cuts all their bytes.
  Sliced Slice(std::span<const ReducePiece> pieces, std::size_t element_bytes, Cut cut) const;
  /// Over the hosts.
  Status ReduceOwn(const Sliced& sliced, const ReduceSpec& spec);
  Status ReduceInBlocks(std::span<const ReducePiece> pieces, const ReduceSpec& spec, Cut blocks);
  Status ScatterAtOnce(std::span<const ScatterPiece> pieces, const ReduceSpec& spec);
  Status ScatterInTurns(std::span<const ScatterPiece> pieces, const ReduceSpec& spec,
                        std::size_t most_bytes);
  Status ScatterInHost(std::span<const ScatterPiece> pieces, const ReduceSpec& spec,
                       std::byte* partials);
  Status ScatterInColumn(std::span<const ScatterPiece> pieces, const ReduceSpec& spec,
                         const std::byte* partials, std::byte* results);
  Status DealOut(std::span<const ScatterPiece> pieces, std::size_t element_bytes,
                 const std::byte* results);
  Status GatherByColumns(std::span<const GatherPiece> pieces, int columns);
  /// A backend of `hearers`, among them a root that is in no column.
  Result<Backend*> RootPart(int root, std::span<const int> hearers);

  std::size_t SumOfHost(std::span<const std::size_t> by_rank, int host) const {
    return Sum(by_rank.subspan(AsSize(layout_.First(host)), AsSize(layout_.RanksOn(host))));
  }
  /// Elements of the parts of the ranks at or behind `column` on `host`.
  std::int64_t SumOfGroup(std::span<const std::int64_t> by_rank, int column, int host) const {
    const int begin = layout_.Member(column, host);
    const int end = layout_.Member(column + 1, host);
    return Sum(by_rank.subspan(AsSize(begin), AsSize(end - begin)));
  }

  // Fixed at construction.
  const std::shared_ptr<TwoLevelMeans> means_;  // shared by the backend of the world and its parts
  const std::vector<int> world_ranks_;          // of this backend's ranks
  const HostLayout layout_;                     // of this backend's ranks
  const int rank_;
  const int host_;
  const int first_;  // rank on this host
  Backend* local_ = nullptr;
  Backend* wide_ = nullptr;
  std::unique_ptr<Backend> local_part_;  // what the two point to, in a part
  std::unique_ptr<Backend> wide_part_;
  int own_column_ = -1;
  std::unique_ptr<Backend> column_;  // if this rank is in one

  // Owned by the executor role.
  std::map<int, std::unique_ptr<Backend>> root_parts_;  // by root
};

Status TwoLevelImpl::UseAllRanks() {
  local_ = means_->local.get();
  wide_ = means_->tcp.get();
  return JoinColumn();
}

Status TwoLevelImpl::UseParts() {
  if (!on_one_host()) {
    HVL_ASSIGN_OR_RETURN(wide_part_, means_->tcp->Split(world_ranks_));
    wide_ = wide_part_.get();
  }
  if (!one_per_host() || on_one_host()) {
    const auto& hosts = means_->hosts;
    const auto first_of_host = std::ranges::lower_bound(hosts, hosts[AsSize(means_->rank)]);
    std::vector<int> places;
    for (int rank = first_; rank < layout_.End(host_); ++rank) {
      places.push_back(world_ranks_[AsSize(rank)] -
                       static_cast<int>(first_of_host - hosts.begin()));
    }
    HVL_ASSIGN_OR_RETURN(local_part_, means_->local->Split(places));
    local_ = local_part_.get();
  }
  return JoinColumn();
}

Status TwoLevelImpl::JoinColumn() {
  own_column_ = layout_.ColumnOf(rank_);
  if (only() != nullptr || own_column_ < 0) return Status::Ok();
  HVL_ASSIGN_OR_RETURN(column_, wide_->Split(layout_.Column(own_column_)));
  return Status::Ok();
}

Result<std::unique_ptr<Backend>> TwoLevelImpl::Split(std::span<const int> ranks) {
  HVL_RETURN_IF_ERROR(CheckPart(ranks, rank_, layout_.ranks()));
  auto part = std::make_unique<TwoLevelImpl>(means_, WorldRanks(ranks, world_ranks_));
  HVL_RETURN_IF_ERROR(part->UseParts());
  return std::unique_ptr<Backend>(std::move(part));
}

// --- Reductions -----------------------------------------------------------------------------

Status TwoLevelImpl::Allreduce(std::span<const ReducePiece> pieces, const ReduceSpec& spec) {
  HVL_RETURN_IF_ERROR(tensor::CheckElementwise(spec));
  if (Backend* const one = only()) return one->Allreduce(pieces, spec);
  if (!tensor::PartialsKeepResult(spec)) return AllreduceWidened(*this, pieces, spec);
  const std::size_t element_bytes = DTypeBytes(spec.dtype);
  std::size_t bytes = 0;
  for (const ReducePiece& piece : pieces) bytes += Bytes(piece.element_count, element_bytes);
  if (const std::size_t blocks = bytes / means_->block_bytes; blocks > 1 && means_->overlaps) {
    return ReduceInBlocks(pieces, spec, {bytes, static_cast<int>(blocks)});
  }
  const Sliced sliced = Slice(pieces, element_bytes, {bytes, ColumnsFor(bytes)});
  HVL_RETURN_IF_ERROR(local_->Reducescatter(sliced.scattered, tensor::PartialSpec(spec)));
  HVL_RETURN_IF_ERROR(ReduceOwn(sliced, spec));
  return local_->Allgather(sliced.gathered);
}

// The pieces form one long vector, of which each column has a slice.
//   1. Reduce-scatter in each host: the rank of column c gets slice c of the host's result, at the
//      place of slice c in its output.
//   2. Each column reduces its slice over the hosts, in place.
//   3. Allgather of the slices in each host.
// Of K bytes, 2 (M-1)/M K leave and enter each host, divided among C ranks; that is the least for M
// hosts that each have K bytes and need K. Within a host an allreduce would move no less.
//
// In place (output == input) this is safe: step 1 writes slice c, which no other rank of the host
// reads.
TwoLevelImpl::Sliced TwoLevelImpl::Slice(std::span<const ReducePiece> pieces,
                                         std::size_t element_bytes, Cut cut) const {
  Sliced sliced{.elements = {pieces.size(), AsSize(local_ranks())},
                .bytes = {pieces.size(), AsSize(local_ranks())}};
  std::size_t begin = 0;
  for (const ReducePiece& piece : pieces) {
    const std::size_t end = begin + Bytes(piece.element_count, element_bytes);
    const std::span<std::int64_t> slice_elements = sliced.elements.Next();
    const std::span<std::size_t> slice_bytes = sliced.bytes.Next();
    std::byte* own_place = nullptr;
    for (int column = 0; column < cut.parts; ++column) {
      const std::size_t slice_begin = std::clamp(cut.Begin(column), begin, end);
      const std::size_t slice_end = std::clamp(cut.Begin(column + 1), begin, end);
      if (slice_begin == slice_end) continue;
      const std::size_t member = LocalMember(column);
      slice_bytes[member] = slice_end - slice_begin;
      slice_elements[member] = static_cast<std::int64_t>(slice_bytes[member] / element_bytes);
      if (column != own_column_) continue;
      own_place = At(piece.output, slice_begin - begin);
      sliced.own.push_back({own_place, own_place, slice_elements[member]});
    }
    sliced.scattered.push_back({piece.input, own_place, slice_elements});
    sliced.gathered.push_back({own_place, piece.output, slice_bytes});
    begin = end;
  }
  return sliced;
}

Status TwoLevelImpl::ReduceOwn(const Sliced& sliced, const ReduceSpec& spec) {
  return sliced.own.empty() ? Status::Ok()
                            : column_->Allreduce(sliced.own, tensor::FinalSpec(spec));
}

// Large vectors in blocks: while the network has block b, the host reduces block b + 1 and shares
// the result of block b - 1. So the time is that of the slower of both, not of both.
Status TwoLevelImpl::ReduceInBlocks(std::span<const ReducePiece> pieces, const ReduceSpec& spec,
                                    Cut blocks) {
  const std::size_t element_bytes = DTypeBytes(spec.dtype);
  std::vector<Sliced> sliced;
  for (int block = 0; block < blocks.parts; ++block) {
    const std::size_t begin = blocks.Begin(block);
    const std::size_t end = blocks.Begin(block + 1);
    sliced.push_back(Slice(CutOut(pieces, element_bytes, begin, end), element_bytes,
                           {end - begin, layout_.columns()}));
  }
  HVL_ASSIGN_OR_RETURN(const std::unique_ptr<StageThread> network,
                       StageThread::Start([this, &sliced, &spec](std::size_t block) {
                         return ReduceOwn(sliced[block], spec);
                       }));
  const auto run = [&] {
    for (std::size_t turn = 0; turn <= sliced.size(); ++turn) {
      if (turn < sliced.size()) {
        HVL_RETURN_IF_ERROR(
            local_->Reducescatter(sliced[turn].scattered, tensor::PartialSpec(spec)));
        network->Release();
      }
      if (turn == 0) continue;
      HVL_RETURN_IF_ERROR(network->Await(turn - 1));
      HVL_RETURN_IF_ERROR(local_->Allgather(sliced[turn - 1].gathered));
    }
    return Status::Ok();
  };
  const Status status = run();
  if (!status.ok()) means_->Abort(status);  // also the network's block
  return status;
}

Status TwoLevelImpl::Reducescatter(std::span<const ScatterPiece> pieces, const ReduceSpec& spec) {
  HVL_RETURN_IF_ERROR(tensor::CheckElementwise(spec));
  if (Backend* const one = only()) return one->Reducescatter(pieces, spec);
  if (!tensor::PartialsKeepResult(spec)) {
    return ReducescatterWidened(*this, rank_, layout_.ranks(), pieces, spec);
  }
  std::int64_t elements = 0;
  for (const ScatterPiece& piece : pieces) {
    HVL_CHECK(std::ssize(piece.rank_elements) == layout_.ranks(), "one part per rank");
    elements += Sum(piece.rank_elements);
  }
  const std::size_t most_bytes = means_->block_bytes * AsSize(layout_.columns());
  return Bytes(elements, DTypeBytes(spec.dtype)) <= most_bytes
             ? ScatterAtOnce(pieces, spec)
             : ScatterInTurns(pieces, spec, most_bytes);
}

// The memory that a turn needs does not grow with the tensors: each takes as many elements of every
// rank's part as fit into `most_bytes` for all ranks, and each such piece of a part is a tensor of
// its own.
Status TwoLevelImpl::ScatterInTurns(std::span<const ScatterPiece> pieces, const ReduceSpec& spec,
                                    std::size_t most_bytes) {
  const std::size_t element_bytes = DTypeBytes(spec.dtype);
  const auto parts = PartsByOwner(pieces, rank_, layout_.ranks(), element_bytes);
  std::int64_t longest = 0;
  for (const auto& part : parts) longest = std::max(longest, CountElements(part));
  const std::size_t turn_bytes =
      std::max(most_bytes / parts.size() / element_bytes, std::size_t{1}) * element_bytes;
  for (std::size_t begin = 0; begin < Bytes(longest, element_bytes); begin += turn_bytes) {
    std::vector<std::vector<ReducePiece>> inside;
    std::size_t count = 0;
    for (const auto& part : parts) {
      inside.push_back(CutOut(part, element_bytes, begin, begin + turn_bytes));
      count += inside.back().size();
    }
    SizeLists<std::int64_t> elements(count, parts.size());
    std::vector<ScatterPiece> turn;
    for (std::size_t owner = 0; owner < parts.size(); ++owner) {
      for (const ReducePiece& piece : inside[owner]) {
        const std::span<std::int64_t> only_there = elements.Next();
        only_there[owner] = piece.element_count;
        turn.push_back({piece.input, piece.output, only_there});
      }
    }
    HVL_RETURN_IF_ERROR(ScatterAtOnce(turn, spec));
  }
  return Status::Ok();
}

// A column gets the parts of those of its ranks, and of the ranks behind them.
//   1. Reduce-scatter in each host: the rank of a column gets the host's results of all parts of
//      its column, on all hosts.
//   2. Reduce-scatter in each column: it gets the results of its own host's parts of the column.
//   3. Where ranks stand behind it, it deals those parts out.
// (M-1)/M K bytes leave and enter each host. Needs memory for K/C bytes.
Status TwoLevelImpl::ScatterAtOnce(std::span<const ScatterPiece> pieces, const ReduceSpec& spec) {
  const std::size_t element_bytes = DTypeBytes(spec.dtype);
  std::int64_t partial_elements = 0;
  std::int64_t result_elements = 0;
  for (const ScatterPiece& piece : pieces) {
    if (own_column_ < 0) continue;
    for (int host = 0; host < layout_.hosts(); ++host) {
      partial_elements += SumOfGroup(piece.rank_elements, own_column_, host);
    }
    result_elements += SumOfGroup(piece.rank_elements, own_column_, host_);
  }
  const bool deals = local_ranks() > layout_.columns();
  const std::size_t partial_bytes = Bytes(partial_elements, element_bytes);
  const std::size_t result_bytes = deals ? Bytes(result_elements, element_bytes) : 0;
  const std::unique_ptr<std::byte[]> memory(new (std::nothrow)
                                                std::byte[partial_bytes + result_bytes]);
  if (memory == nullptr) {
    return {StatusCode::kResourceExhausted,
            Format("no memory for {} bytes that a reduce-scatter over hosts needs beside its "
                   "tensors",
                   partial_bytes + result_bytes)};
  }
  std::byte* const results = deals ? memory.get() + partial_bytes : nullptr;
  HVL_RETURN_IF_ERROR(ScatterInHost(pieces, spec, memory.get()));
  if (own_column_ >= 0) HVL_RETURN_IF_ERROR(ScatterInColumn(pieces, spec, memory.get(), results));
  return deals ? DealOut(pieces, element_bytes, results) : Status::Ok();
}

// Of a tensor, what the hosts get lies there host by host, and that of a host column by column.
// `partials`: tensor by tensor, then host by host.
Status TwoLevelImpl::ScatterInHost(std::span<const ScatterPiece> pieces, const ReduceSpec& spec,
                                   std::byte* partials) {
  const std::size_t element_bytes = DTypeBytes(spec.dtype);
  SizeLists<std::int64_t> elements(pieces.size() * AsSize(layout_.hosts()), AsSize(local_ranks()));
  std::vector<ScatterPiece> scattered;
  for (const ScatterPiece& piece : pieces) {
    const auto* input = static_cast<const std::byte*>(piece.input);
    for (int host = 0; host < layout_.hosts(); ++host) {
      const std::span<std::int64_t> of_columns = elements.Next();
      for (int column = 0; column < layout_.columns(); ++column) {
        of_columns[LocalMember(column)] = SumOfGroup(piece.rank_elements, column, host);
      }
      const std::int64_t of_host = Sum(of_columns);
      if (of_host == 0) continue;  // the input may be null
      scattered.push_back({input, partials, of_columns});
      input += Bytes(of_host, element_bytes);
      partials += Bytes(of_columns[AsSize(rank_ - first_)], element_bytes);
    }
  }
  return local_->Reducescatter(scattered, tensor::PartialSpec(spec));
}

// `results`: tensor by tensor; null = straight to the outputs.
Status TwoLevelImpl::ScatterInColumn(std::span<const ScatterPiece> pieces, const ReduceSpec& spec,
                                     const std::byte* partials, std::byte* results) {
  const std::size_t element_bytes = DTypeBytes(spec.dtype);
  SizeLists<std::int64_t> elements(pieces.size(), AsSize(layout_.hosts()));
  std::vector<ScatterPiece> scattered;
  for (const ScatterPiece& piece : pieces) {
    const std::span<std::int64_t> of_hosts = elements.Next();
    for (int host = 0; host < layout_.hosts(); ++host) {
      of_hosts[AsSize(host)] = SumOfGroup(piece.rank_elements, own_column_, host);
    }
    scattered.push_back({partials, results == nullptr ? piece.output : results, of_hosts});
    partials += Bytes(Sum(of_hosts), element_bytes);
    if (results != nullptr) results += Bytes(of_hosts[AsSize(host_)], element_bytes);
  }
  return column_->Reducescatter(scattered, tensor::FinalSpec(spec));
}

Status TwoLevelImpl::DealOut(std::span<const ScatterPiece> pieces, std::size_t element_bytes,
                             const std::byte* results) {
  const std::size_t ranks = AsSize(local_ranks());
  SizeLists<std::size_t> bytes(pieces.size(), ranks * ranks);
  std::vector<ExchangePiece> dealt;
  for (const ScatterPiece& piece : pieces) {
    const std::span<std::size_t> of_pairs = bytes.Next();
    for (int column = 0; column < layout_.columns(); ++column) {
      const std::size_t from = LocalMember(column);
      for (std::size_t to = from; to < LocalMember(column + 1); ++to) {
        of_pairs[from * ranks + to] =
            Bytes(piece.rank_elements[AsSize(first_) + to], element_bytes);
      }
    }
    dealt.push_back({results, piece.output, of_pairs});
    results += Sum(of_pairs.subspan(AsSize(rank_ - first_) * ranks, ranks));
  }
  return local_->Alltoall(dealt);
}

// --- The others -----------------------------------------------------------------------------

// On every host one rank hears it: that of the root's column, if it is in one.
Status TwoLevelImpl::Broadcast(std::span<const BroadcastPiece> pieces, int root) {
  if (root < 0 || root >= layout_.ranks()) {
    return {StatusCode::kInvalidArgument,
            Format("broadcast from rank {}, but there are only {} ranks", root, layout_.ranks())};
  }
  if (on_one_host()) return local_->Broadcast(pieces, root);
  if (one_per_host()) return wide_->Broadcast(pieces, root);
  const int root_host = layout_.HostOf(root);
  const int column = layout_.ColumnOf(root);
  std::vector<int> hearers = layout_.Column(std::max(column, 0));
  hearers[AsSize(root_host)] = root;
  const int hearer = hearers[AsSize(host_)];
  if (rank_ == hearer) {
    Backend* part = column_.get();
    if (column < 0) {
      HVL_ASSIGN_OR_RETURN(part, RootPart(root, hearers));
    }
    HVL_RETURN_IF_ERROR(part->Broadcast(pieces, root_host));
  }
  std::vector<BroadcastPiece> heard;
  for (const BroadcastPiece& piece : pieces) {
    heard.push_back({piece.output, piece.output, piece.bytes});
  }
  return local_->Broadcast(heard, hearer - first_);
}

// What the hosts have lies in the output host by host; the ranks of a host share it first. Then
// each column gathers a slice of what each host has, and the ranks of a host share those. Each byte
// enters every other host once.
Status TwoLevelImpl::Allgather(std::span<const GatherPiece> pieces) {
  if (Backend* const one = only()) return one->Allgather(pieces);
  std::vector<GatherPiece> of_host;
  std::size_t bytes = 0;
  for (const GatherPiece& piece : pieces) {
    HVL_CHECK(std::ssize(piece.rank_bytes) == layout_.ranks(), "one contribution per rank");
    of_host.push_back({piece.input, At(piece.output, Sum(piece.rank_bytes.first(AsSize(first_)))),
                       piece.rank_bytes.subspan(AsSize(first_), AsSize(local_ranks()))});
    bytes += Sum(piece.rank_bytes);
  }
  HVL_RETURN_IF_ERROR(local_->Allgather(of_host));
  return GatherByColumns(pieces, ColumnsFor(bytes));
}

Status TwoLevelImpl::GatherByColumns(std::span<const GatherPiece> pieces, int columns) {
  const std::size_t hosts = AsSize(layout_.hosts());
  SizeLists<std::size_t> by_host(pieces.size() * hosts, hosts);
  SizeLists<std::size_t> by_local_rank(pieces.size() * hosts, AsSize(local_ranks()));
  std::vector<GatherPiece> of_column;
  std::vector<GatherPiece> of_host;
  for (const GatherPiece& piece : pieces) {
    std::size_t begin = 0;
    for (int host = 0; host < layout_.hosts(); ++host) {
      const Cut cut{SumOfHost(piece.rank_bytes, host), columns};
      const std::span<std::size_t> slice_bytes = by_local_rank.Next();
      std::byte* own_place = nullptr;
      for (int column = 0; column < columns; ++column) {
        const std::size_t bytes = cut.Begin(column + 1) - cut.Begin(column);
        slice_bytes[LocalMember(column)] = bytes;
        if (column != own_column_ || bytes == 0) continue;
        own_place = At(piece.output, begin + cut.Begin(column));
        const std::span<std::size_t> only_there = by_host.Next();
        only_there[AsSize(host)] = bytes;
        of_column.push_back({own_place, own_place, only_there});
      }
      if (host != host_) of_host.push_back({own_place, At(piece.output, begin), slice_bytes});
      begin += cut.bytes;
    }
  }
  if (!of_column.empty()) HVL_RETURN_IF_ERROR(column_->Allgather(of_column));
  return local_->Allgather(of_host);
}

// What goes to higher hosts, to lower ones and stays in the host lies apart in the tensors, and so
// each is a piece of its own. Every byte that has to change hosts does so once, straight from input
// to output.
Status TwoLevelImpl::Alltoall(std::span<const ExchangePiece> pieces) {
  if (Backend* const one = only()) return one->Alltoall(pieces);
  const std::size_t ranks = AsSize(layout_.ranks());
  const std::size_t local_ranks = AsSize(this->local_ranks());
  SizeLists<std::size_t> between(2 * pieces.size(), ranks * ranks);
  SizeLists<std::size_t> inside(pieces.size(), local_ranks * local_ranks);
  std::vector<ExchangePiece> of_hosts;
  std::vector<ExchangePiece> of_host;
  for (const ExchangePiece& piece : pieces) {
    HVL_CHECK(piece.bytes.size() == ranks * ranks, "one size per pair of ranks");
    const std::span<std::size_t> up = between.Next();
    const std::span<std::size_t> down = between.Next();
    const std::span<std::size_t> within = inside.Next();
    std::size_t received_before = 0;  // from lower hosts
    std::size_t received_within = 0;
    for (std::size_t from = 0; from < ranks; ++from) {
      const int host = layout_.HostOf(static_cast<int>(from));
      const std::span<const std::size_t> row = piece.bytes.subspan(from * ranks, ranks);
      const auto host_begin = row.begin() + layout_.First(host);
      const auto host_end = row.begin() + layout_.End(host);
      const std::size_t begin = from * ranks;
      std::copy(row.begin(), host_begin, down.begin() + static_cast<std::ptrdiff_t>(begin));
      std::copy(host_end, row.end(),
                up.begin() + static_cast<std::ptrdiff_t>(begin) + layout_.End(host));
      if (host < host_) received_before += row[AsSize(rank_)];
      if (host != host_) continue;
      received_within += row[AsSize(rank_)];
      std::copy(
          host_begin, host_end,
          within.begin() + static_cast<std::ptrdiff_t>((from - AsSize(first_)) * local_ranks));
    }
    const auto sent = piece.bytes.subspan(AsSize(rank_) * ranks, ranks);
    const std::size_t sent_before = Sum(sent.first(AsSize(first_)));
    const std::size_t sent_within = SumOfHost(sent, host_);
    of_hosts.push_back({At(piece.input, sent_before + sent_within), piece.output, up});
    of_hosts.push_back({piece.input, At(piece.output, received_before + received_within), down});
    of_host.push_back({At(piece.input, sent_before), At(piece.output, received_before), within});
  }
  HVL_RETURN_IF_ERROR(wide_->Alltoall(of_hosts));
  return local_->Alltoall(of_host);
}

// The first column knows that all ranks of its hosts have come, and that no host is missing; then
// all ranks may know.
Status TwoLevelImpl::Barrier() {
  if (Backend* const one = only()) return one->Barrier();
  HVL_RETURN_IF_ERROR(local_->Barrier());
  if (own_column_ == 0) HVL_RETURN_IF_ERROR(column_->Barrier());
  return local_->Barrier();
}

Result<Backend*> TwoLevelImpl::RootPart(int root, std::span<const int> hearers) {
  std::unique_ptr<Backend>& part = root_parts_[root];
  if (part == nullptr) {
    HVL_ASSIGN_OR_RETURN(part, wide_->Split(hearers));
  }
  return part.get();
}

}  // namespace

Result<std::unique_ptr<TwoLevelBackend>> CreateTwoLevelBackend(net::Mesh& mesh,
                                                               TwoLevelOptions options,
                                                               const Logger& logger) {
  options.local.group_ends.clear();
  options.tcp.group_ends = HostLayout(mesh.hosts()).ends();
  HVL_ASSIGN_OR_RETURN(std::unique_ptr<Backend> local_ranks,
                       CreateLocalBackend(mesh, options.local, logger));
  HVL_ASSIGN_OR_RETURN(std::unique_ptr<TcpBackend> all_ranks, CreateTcpBackend(mesh, options.tcp));
  std::vector<int> world_ranks(mesh.hosts().size());
  std::iota(world_ranks.begin(), world_ranks.end(), 0);
  auto backend = std::make_unique<TwoLevelImpl>(
      std::make_shared<TwoLevelMeans>("two-level", std::move(all_ranks), std::move(local_ranks),
                                      mesh.hosts(), mesh.rank(), options.block_bytes,
                                      /*levels_overlap=*/true),
      std::move(world_ranks));
  HVL_RETURN_IF_ERROR(backend->UseAllRanks());
  return std::unique_ptr<TwoLevelBackend>(std::move(backend));
}

Result<std::unique_ptr<TwoLevelBackend>> CreateGroupedTcpBackend(
    std::unique_ptr<net::DataLinks> links, const TcpOptions& options) {
  HVL_CHECK(!options.group_ends.empty() && options.group_ends.back() == links->size());
  const int rank = links->rank();
  std::vector<int> world_ranks(AsSize(links->size()));
  std::iota(world_ranks.begin(), world_ranks.end(), 0);
  std::vector<int> groups;
  for (const int other : world_ranks) {
    const auto& ends = options.group_ends;
    groups.push_back(static_cast<int>(std::ranges::upper_bound(ends, other) - ends.begin()));
  }
  std::vector<int> own_group;
  for (const int other : world_ranks)
    if (groups[AsSize(other)] == groups[AsSize(rank)]) own_group.push_back(other);
  HVL_ASSIGN_OR_RETURN(std::unique_ptr<TcpBackend> all_ranks,
                       CreateTcpBackend(std::move(links), options));
  HVL_ASSIGN_OR_RETURN(std::unique_ptr<Backend> group, all_ranks->Split(own_group));
  auto backend = std::make_unique<TwoLevelImpl>(
      std::make_shared<TwoLevelMeans>("tcp", std::move(all_ranks), std::move(group),
                                      std::move(groups), rank, TwoLevelOptions().block_bytes,
                                      /*levels_overlap=*/false),
      std::move(world_ranks));
  HVL_RETURN_IF_ERROR(backend->UseAllRanks());
  return std::unique_ptr<TwoLevelBackend>(std::move(backend));
}

}  // namespace hvl::collective
