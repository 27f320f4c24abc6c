#include "csrc/plugins/mpi/backend.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/base/abandon.h"
#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/collective/exchange_parts.h"
#include "csrc/collective/part.h"
#include "csrc/collective/piece_list.h"
#include "csrc/plugins/mpi/process.h"
#include "csrc/plugins/mpi/reductions.h"
#include "csrc/tensor/float_mode.h"

// Terms: N ranks, K bytes in all pieces together, which form one long vector. A step is the part of
// it that one MPI operation moves. Every rank cuts the same steps, because they follow from sizes
// that are the same everywhere. Whether a step can be done where the memory is, or has to be packed
// into a staging buffer, each rank decides for itself: that is not visible to the others.

namespace hvl::mpi {

using collective::BroadcastPiece;
using collective::ExchangePiece;
using collective::GatherPiece;
using collective::PieceList;
using collective::ReducePiece;
using collective::ScatterPiece;

namespace {

void CopyUnlessSame(void* output, const void* input, std::size_t bytes) {
  if (output != input && bytes > 0) std::memmove(output, input, bytes);
}

/// Sizes and places in a buffer, in bytes, by rank, as the "v" operations of MPI want them.
struct Layout {
  explicit Layout(std::size_t ranks) : bytes(ranks), begins(ranks) {}
  /// One after the other.
  void Pack() { std::exclusive_scan(bytes.begin(), bytes.end(), begins.begin(), 0); }
  int total() const { return std::accumulate(bytes.begin(), bytes.end(), 0); }

  std::vector<int> bytes;
  std::vector<int> begins;
};

/// Where `begin` of a part lies behind `base`, with which a tensor in one piece begins.
int PlaceOf(const std::byte* part, const std::byte* base, std::size_t begin) {
  return static_cast<int>(static_cast<std::size_t>(part - base) + begin);
}

class MpiBackend final : public collective::Backend {
 public:
  MpiBackend(std::shared_ptr<Means> means, std::vector<int> world_ranks,
             std::vector<int> group_ends, int rank, MPI_Comm parent, MPI_Comm communicator)
      : means_(std::move(means)),
        world_ranks_(std::move(world_ranks)),
        group_ends_(std::move(group_ends)),
        rank_(rank),
        parent_(parent),
        communicator_(communicator) {}
  ~MpiBackend() override {
    if (communicator_ != MPI_COMM_NULL) means_->process().FreeCommunicator(communicator_);
  }
  MpiBackend(const MpiBackend&) = delete;
  MpiBackend& operator=(const MpiBackend&) = delete;

  std::string_view name() const override { return "mpi"; }
  void Abort(const Status& cause) override { means_->stop().Set(cause); }
  Result<SharedBuffer> Allocate(std::size_t) override {
    return Status(StatusCode::kNotSupported, "the mpi data plane has no shared memory");
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
  // A part of the long vector of an allreduce or a broadcast, in one piece of memory: where it is,
  // or in a staging buffer.
  struct Step {
    std::size_t begin;
    std::size_t end;
    const std::byte* input;
    std::byte* output;
    bool staged;

    std::size_t bytes() const { return end - begin; }
  };

  std::size_t ranks() const { return world_ranks_.size(); }
  std::size_t own() const { return static_cast<std::size_t>(rank_); }
  const plugin::MpiOptions& options() const { return means_->options(); }

  Status Perform(const std::function<Status()>& work);
  Status Exchange(const std::byte* from, const Layout& out, std::byte* to, const Layout& in);
  Status Gather(std::byte* memory, const Layout& parts);

  Step TakeStep(const PieceList& list, std::size_t begin, std::size_t bytes);
  const std::byte* Outgoing(const std::vector<PieceList>& parts, const std::byte* base,
                            std::size_t begin, Layout* sent);
  template <typename Body>
  Status InSteps(const PieceList& list, std::size_t step_bytes, const Body& body);

  Status AllreduceAtOnce(const Step& step, const tensor::ReduceSpec& spec);
  Status AllreduceInRankOrder(const Step& step, const tensor::ReduceSpec& spec);
  Status AllreduceByMpi(const Step& step, const tensor::ReduceSpec& spec);
  Status ReduceParts(const std::vector<PieceList>& inputs, const std::byte* base,
                     const PieceList& output, const tensor::ReduceSpec& spec);

  const std::shared_ptr<Means> means_;  // shared by the backend of the session and its parts
  const std::vector<int> world_ranks_;  // of the session, of this backend's ranks
  const std::vector<int> group_ends_;   // of its ranks (tensor::Reduce)
  const int rank_;                      // in this backend
  MPI_Comm parent_;                     // of the session; null: this is the session's own
  MPI_Comm communicator_;               // of a part: made by its first operation
};

// A part's communicator is made by all its ranks together, and by nobody else. They come here
// together too, while Split asks nobody.
Status MpiBackend::Perform(const std::function<Status()>& work) {
  HVL_RETURN_IF_ERROR(means_->stop().cause());
  if (communicator_ == MPI_COMM_NULL) {
    constexpr auto kLong = std::chrono::hours(24 * 365);
    HVL_ASSIGN_OR_RETURN(communicator_, means_->process().MakeCommunicator(
                                            parent_, world_ranks_, kLong,
                                            [means = means_] { return means->stop().cause(); }));
  }
  return means_->process().Perform(work);
}

// --- Steps ----------------------------------------------------------------------------------

Status MpiBackend::Exchange(const std::byte* from, const Layout& out, std::byte* to,
                            const Layout& in) {
  return means_->Complete("MPI_Ialltoallv", [&, this](MPI_Request* request) {
    return MPI_Ialltoallv(from, out.bytes.data(), out.begins.data(), MPI_BYTE, to, in.bytes.data(),
                          in.begins.data(), MPI_BYTE, communicator_, request);
  });
}

// Own part in place.
Status MpiBackend::Gather(std::byte* memory, const Layout& parts) {
  return means_->Complete("MPI_Iallgatherv", [&, this](MPI_Request* request) {
    return MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, memory, parts.bytes.data(),
                           parts.begins.data(), MPI_BYTE, communicator_, request);
  });
}

MpiBackend::Step MpiBackend::TakeStep(const PieceList& list, std::size_t begin, std::size_t bytes) {
  Step step{.begin = begin,
            .end = std::min(begin + bytes, list.bytes()),
            .input = nullptr,
            .output = nullptr,
            .staged = false};
  if (list.CountPieces(step.begin, step.end) == 1) {
    list.ForEach(step.begin, step.end, [&step](const PieceList::Piece& piece) {
      step.input = piece.input;
      step.output = piece.output;
    });
    return step;
  }
  step.staged = true;
  step.output = means_->Staging(0, step.bytes());
  step.input = step.output;
  return step;
}

template <typename Body>
Status MpiBackend::InSteps(const PieceList& list, std::size_t step_bytes, const Body& body) {
  for (std::size_t begin = 0; begin < list.bytes(); begin += step_bytes) {
    const Step step = TakeStep(list, begin, step_bytes);
    HVL_RETURN_IF_ERROR(body(step));
    if (step.staged) list.Scatter(step.begin, step.end, step.output);
  }
  return Status::Ok();
}

// What a round sends of each part, from `begin` on: where it is, behind `base`, or else packed.
const std::byte* MpiBackend::Outgoing(const std::vector<PieceList>& parts, const std::byte* base,
                                      std::size_t begin, Layout* sent) {
  if (base != nullptr) {
    for (std::size_t r = 0; r < ranks(); ++r) {
      if (sent->bytes[r] > 0) sent->begins[r] = PlaceOf(parts[r].pieces()[0].input, base, begin);
    }
    return base;
  }
  sent->Pack();
  std::byte* const packed = means_->Staging(0, static_cast<std::size_t>(sent->total()));
  for (std::size_t r = 0; r < ranks(); ++r) {
    const std::size_t end = begin + static_cast<std::size_t>(sent->bytes[r]);
    parts[r].Gather(begin, end, packed + sent->begins[r]);
  }
  return packed;
}

// --- Allreduce ------------------------------------------------------------------------------

Status MpiBackend::Allreduce(std::span<const ReducePiece> pieces, const tensor::ReduceSpec& spec) {
  HVL_RETURN_IF_ERROR(means_->stop().cause());
  HVL_RETURN_IF_ERROR(tensor::CheckElementwise(spec));
  PieceList list;
  for (const ReducePiece& piece : pieces) {
    list.Add(piece.input, piece.output,
             static_cast<std::size_t>(piece.element_count) * DTypeBytes(spec.dtype));
  }
  if (ranks() == 1) {
    list.ForEach(0, list.bytes(), [&spec](const PieceList::Piece& piece) {
      const void* const input = piece.input;
      tensor::Reduce(spec, {&input, 1}, piece.output,
                     static_cast<std::int64_t>(piece.bytes / DTypeBytes(spec.dtype)));
    });
    return Status::Ok();
  }
  if (list.bytes() == 0) return Status::Ok();
  return Perform([&, this] {
    const bool by_mpi = !options().reproducible && PartialSumsFit(spec);
    const bool at_once = !by_mpi && list.bytes() * (ranks() - 1) <= options().small_bytes;
    // MPI cuts large vectors itself.
    const std::size_t most =
        by_mpi && pieces.size() == 1 ? options().call_bytes : options().chunk_bytes;
    const std::size_t element_bytes = DTypeBytes(spec.dtype);
    const std::size_t step_bytes = std::max(most / element_bytes, std::size_t{1}) * element_bytes;
    return InSteps(list, at_once ? list.bytes() : step_bytes, [&, this](const Step& step) {
      if (step.staged) list.Gather(step.begin, step.end, step.output);
      if (by_mpi) return AllreduceByMpi(step, spec);
      return at_once ? AllreduceAtOnce(step, spec) : AllreduceInRankOrder(step, spec);
    });
  });
}

// Everybody gets everything and reduces all of it: one operation of MPI, for (N-1) K bytes per
// rank.
Status MpiBackend::AllreduceAtOnce(const Step& step, const tensor::ReduceSpec& spec) {
  const int bytes = static_cast<int>(step.bytes());
  std::byte* const all = means_->Staging(1, step.bytes() * ranks());
  HVL_RETURN_IF_ERROR(means_->Complete("MPI_Iallgather", [&, this](MPI_Request* request) {
    return MPI_Iallgather(step.input, bytes, MPI_BYTE, all, bytes, MPI_BYTE, communicator_,
                          request);
  }));
  std::vector<const void*> inputs;
  for (std::size_t r = 0; r < ranks(); ++r) inputs.push_back(all + r * step.bytes());
  tensor::Reduce(spec, group_ends_, inputs, step.output,
                 static_cast<std::int64_t>(step.bytes() / DTypeBytes(spec.dtype)));
  return Status::Ok();
}

// Slice r of the step, one of N nearly equal parts, goes from everybody to rank r, which adds in
// the order of ranks; then everybody gets all slices. 2 (N-1) K / N bytes out and in per rank, as
// with a ring. In place (output == input) this is safe: when the exchange is done, what was sent
// is.
Status MpiBackend::AllreduceInRankOrder(const Step& step, const tensor::ReduceSpec& spec) {
  const std::size_t element_bytes = DTypeBytes(spec.dtype);
  const std::size_t elements = step.bytes() / element_bytes;
  Layout slices(ranks());
  for (std::size_t r = 0; r < ranks(); ++r) {
    const std::size_t count = elements * (r + 1) / ranks() - elements * r / ranks();
    slices.bytes[r] = static_cast<int>(count * element_bytes);
  }
  slices.Pack();
  const int own_bytes = slices.bytes[own()];
  const int own_begin = slices.begins[own()];
  Layout sent = slices;
  sent.bytes[own()] = 0;
  Layout received(ranks());
  std::ranges::fill(received.bytes, own_bytes);
  received.bytes[own()] = 0;
  received.Pack();
  std::byte* const others = means_->Staging(1, static_cast<std::size_t>(received.total()));
  HVL_RETURN_IF_ERROR(Exchange(step.input, sent, others, received));
  std::vector<const void*> inputs;
  for (std::size_t r = 0; r < ranks(); ++r) {
    inputs.push_back(r == own() ? step.input + own_begin : others + received.begins[r]);
  }
  const std::int64_t count = own_bytes / static_cast<int>(element_bytes);
  if (count > 0) tensor::Reduce(spec, group_ends_, inputs, step.output + own_begin, count);
  return Gather(step.output, slices);
}

// The order of the sums, and so the last bits of the result, are up to MPI.
Status MpiBackend::AllreduceByMpi(const Step& step, const tensor::ReduceSpec& spec) {
  const std::size_t count = step.bytes() / DTypeBytes(spec.dtype);
  const Reduction reduction = ReductionFor(spec);
  const void* const input = step.input == step.output ? MPI_IN_PLACE : step.input;
  HVL_RETURN_IF_ERROR(means_->Complete("MPI_Iallreduce", [&, this](MPI_Request* request) {
    return MPI_Iallreduce(input, step.output, static_cast<int>(count), reduction.type, reduction.op,
                          communicator_, request);
  }));
  if (spec.op != ReduceOp::kAverage && spec.postscale == 1.0) return Status::Ok();
  const void* const sum = step.output;
  tensor::Reduce(spec, {&sum, 1}, step.output, static_cast<std::int64_t>(count));
  return Status::Ok();
}

// --- Reduce-scatter -------------------------------------------------------------------------

Status MpiBackend::Reducescatter(std::span<const ScatterPiece> pieces,
                                 const tensor::ReduceSpec& spec) {
  HVL_RETURN_IF_ERROR(means_->stop().cause());
  HVL_RETURN_IF_ERROR(tensor::CheckElementwise(spec));
  std::vector<PieceList> inputs(ranks());  // by the rank that gets the sum
  PieceList output;
  std::size_t total_bytes = 0;
  for (const ScatterPiece& piece : pieces) {
    HVL_CHECK(piece.rank_elements.size() == ranks(), "one part per rank");
    std::size_t offset = 0;
    for (std::size_t owner = 0; owner < ranks(); ++owner) {
      const std::size_t bytes =
          static_cast<std::size_t>(piece.rank_elements[owner]) * DTypeBytes(spec.dtype);
      if (bytes == 0) continue;  // the input may be null
      inputs[owner].Add(static_cast<const std::byte*>(piece.input) + offset, nullptr, bytes);
      if (owner == own()) output.Add(nullptr, piece.output, bytes);
      offset += bytes;
    }
    total_bytes += offset;
  }
  if (total_bytes == 0) return Status::Ok();
  const bool direct = pieces.size() == 1 && total_bytes <= options().call_bytes;
  const void* const base = direct ? pieces[0].input : nullptr;
  return Perform(
      [&, this] { return ReduceParts(inputs, static_cast<const std::byte*>(base), output, spec); });
}

// As the first half of an allreduce, with parts of any sizes: in each round a part gives at most
// the N-th part of the staging buffers. `base`: where all parts lie one after the other, else null.
Status MpiBackend::ReduceParts(const std::vector<PieceList>& inputs, const std::byte* base,
                               const PieceList& output, const tensor::ReduceSpec& spec) {
  const std::size_t element_bytes = DTypeBytes(spec.dtype);
  const std::size_t share = options().chunk_bytes / ranks() / element_bytes;
  const std::size_t round_bytes = std::max(share, std::size_t{1}) * element_bytes;
  std::size_t longest = 0;
  for (const PieceList& part : inputs) longest = std::max(longest, part.bytes());
  for (std::size_t begin = 0; begin < longest; begin += round_bytes) {
    const auto in_round = [begin, round_bytes](std::size_t bytes) {
      return std::min(std::max(bytes, begin) - begin, round_bytes);
    };
    Layout sent(ranks());
    Layout received(ranks());
    const std::size_t own_bytes = in_round(output.bytes());
    for (std::size_t r = 0; r < ranks(); ++r) {
      sent.bytes[r] = static_cast<int>(in_round(inputs[r].bytes()));
      received.bytes[r] = static_cast<int>(own_bytes);
    }
    received.Pack();
    std::byte* const to = means_->Staging(1, static_cast<std::size_t>(received.total()));
    const std::byte* const from = Outgoing(inputs, base, begin, &sent);
    HVL_RETURN_IF_ERROR(Exchange(from, sent, to, received));
    output.ForEach(begin, begin + own_bytes, [&, this](const PieceList::Piece& piece) {
      std::vector<const void*> parts;
      for (std::size_t r = 0; r < ranks(); ++r) {
        parts.push_back(to + received.begins[r] + (piece.begin - begin));
      }
      tensor::Reduce(spec, group_ends_, parts, piece.output,
                     static_cast<std::int64_t>(piece.bytes / element_bytes));
    });
  }
  return Status::Ok();
}

// --- The others -----------------------------------------------------------------------------

Status MpiBackend::Broadcast(std::span<const BroadcastPiece> pieces, int root) {
  HVL_RETURN_IF_ERROR(means_->stop().cause());
  HVL_CHECK(root >= 0 && root < static_cast<int>(ranks()), Format("root {} of {}", root, ranks()));
  PieceList list;
  for (const BroadcastPiece& piece : pieces) {
    if (rank_ == root) CopyUnlessSame(piece.output, piece.input, piece.bytes);
    list.Add(piece.output, piece.output, piece.bytes);
  }
  if (ranks() == 1 || list.bytes() == 0) return Status::Ok();
  const std::size_t most = pieces.size() == 1 ? options().call_bytes : options().chunk_bytes;
  return Perform([&, this] {
    return InSteps(list, most, [&, this](const Step& step) {
      if (step.staged && rank_ == root) list.Gather(step.begin, step.end, step.output);
      return means_->Complete("MPI_Ibcast", [&, this](MPI_Request* request) {
        return MPI_Ibcast(step.output, static_cast<int>(step.bytes()), MPI_BYTE, root,
                          communicator_, request);
      });
    });
  });
}

Status MpiBackend::Allgather(std::span<const GatherPiece> pieces) {
  HVL_RETURN_IF_ERROR(means_->stop().cause());
  std::vector<PieceList> parts(ranks());  // by contributing rank
  std::size_t total_bytes = 0;
  std::size_t longest = 0;
  for (const GatherPiece& piece : pieces) {
    HVL_CHECK(piece.rank_bytes.size() == ranks(), "one contribution per rank");
    std::size_t offset = 0;
    for (std::size_t r = 0; r < ranks(); ++r) {
      const std::size_t bytes = piece.rank_bytes[r];
      if (bytes == 0) continue;  // the output may be null
      std::byte* const place = static_cast<std::byte*>(piece.output) + offset;
      if (r == own()) CopyUnlessSame(place, piece.input, bytes);
      parts[r].Add(place, place, bytes);
      offset += bytes;
    }
    total_bytes += offset;
  }
  if (ranks() == 1 || total_bytes == 0) return Status::Ok();
  for (const PieceList& part : parts) longest = std::max(longest, part.bytes());
  const bool direct = pieces.size() == 1 && total_bytes <= options().call_bytes;
  const std::size_t round_bytes =
      direct ? longest : std::max(options().chunk_bytes / ranks(), std::size_t{1});
  return Perform([&, this] {
    for (std::size_t begin = 0; begin < longest; begin += round_bytes) {
      Layout round(ranks());
      for (std::size_t r = 0; r < ranks(); ++r) {
        const std::size_t left = std::max(parts[r].bytes(), begin) - begin;
        round.bytes[r] = static_cast<int>(std::min(left, round_bytes));
      }
      round.Pack();
      if (direct) return Gather(static_cast<std::byte*>(pieces[0].output), round);
      std::byte* const memory = means_->Staging(0, static_cast<std::size_t>(round.total()));
      const auto end = [&](std::size_t r) {
        return begin + static_cast<std::size_t>(round.bytes[r]);
      };
      if (round.bytes[own()] > 0) {
        parts[own()].Gather(begin, end(own()), memory + round.begins[own()]);
      }
      HVL_RETURN_IF_ERROR(Gather(memory, round));
      for (std::size_t r = 0; r < ranks(); ++r) {
        if (r != own() && round.bytes[r] > 0) {
          parts[r].Scatter(begin, end(r), memory + round.begins[r]);
        }
      }
    }
    return Status::Ok();
  });
}

Status MpiBackend::Alltoall(std::span<const ExchangePiece> pieces) {
  HVL_RETURN_IF_ERROR(means_->stop().cause());
  std::vector<PieceList> outgoing(ranks());
  std::vector<PieceList> incoming(ranks());
  std::vector<std::size_t> pair_bytes(ranks() * ranks());  // of all pieces, the same everywhere
  for (const ExchangePiece& piece : pieces) {
    const auto parts = collective::PartsByPeer(piece, rank_, static_cast<int>(ranks()));
    for (std::size_t peer = 0; peer < ranks(); ++peer) {
      const collective::ExchangePart& part = parts[peer];
      if (peer == own()) {
        CopyUnlessSame(part.incoming.data(), part.outgoing.data(), part.outgoing.size());
        continue;
      }
      outgoing[peer].Add(part.outgoing.data(), nullptr, part.outgoing.size());
      incoming[peer].Add(nullptr, part.incoming.data(), part.incoming.size());
    }
    for (std::size_t pair = 0; pair < pair_bytes.size(); ++pair) {
      const bool stays = pair / ranks() == pair % ranks();
      if (!stays) pair_bytes[pair] += piece.bytes[pair];
    }
  }
  const std::size_t longest = std::ranges::max(pair_bytes);
  if (longest == 0) return Status::Ok();
  // Where a tensor lies in one piece, MPI takes it from there and puts it there.
  const bool direct =
      pieces.size() == 1 && std::accumulate(pieces[0].bytes.begin(), pieces[0].bytes.end(),
                                            std::size_t{0}) <= options().call_bytes;
  const auto* const input = direct ? static_cast<const std::byte*>(pieces[0].input) : nullptr;
  auto* const output = direct ? static_cast<std::byte*>(pieces[0].output) : nullptr;
  const std::size_t round_bytes = std::max(options().chunk_bytes / ranks(), std::size_t{1});
  return Perform([&, this] {
    for (std::size_t begin = 0; begin < longest; begin += round_bytes) {
      const auto in_round = [begin, round_bytes](const PieceList& part) {
        return static_cast<int>(std::min(std::max(part.bytes(), begin) - begin, round_bytes));
      };
      Layout sent(ranks());
      Layout received(ranks());
      for (std::size_t peer = 0; peer < ranks(); ++peer) {
        sent.bytes[peer] = in_round(outgoing[peer]);
        received.bytes[peer] = in_round(incoming[peer]);
      }
      const std::byte* const from = Outgoing(outgoing, input, begin, &sent);
      if (output != nullptr) {
        for (std::size_t peer = 0; peer < ranks(); ++peer) {
          if (received.bytes[peer] == 0) continue;
          received.begins[peer] = PlaceOf(incoming[peer].pieces()[0].output, output, begin);
        }
        HVL_RETURN_IF_ERROR(Exchange(from, sent, output, received));
        continue;
      }
      received.Pack();
      std::byte* const to = means_->Staging(1, static_cast<std::size_t>(received.total()));
      HVL_RETURN_IF_ERROR(Exchange(from, sent, to, received));
      for (std::size_t peer = 0; peer < ranks(); ++peer) {
        const std::size_t end = begin + static_cast<std::size_t>(received.bytes[peer]);
        incoming[peer].Scatter(begin, end, to + received.begins[peer]);
      }
    }
    return Status::Ok();
  });
}

Status MpiBackend::Barrier() {
  if (ranks() == 1) return means_->stop().cause();
  return Perform([this] {
    return means_->Complete("MPI_Ibarrier", [this](MPI_Request* request) {
      return MPI_Ibarrier(communicator_, request);
    });
  });
}

Result<std::unique_ptr<collective::Backend>> MpiBackend::Split(std::span<const int> part) {
  HVL_RETURN_IF_ERROR(collective::CheckPart(part, rank_, static_cast<int>(ranks())));
  std::vector<int> members = collective::WorldRanks(part, world_ranks_);
  const auto place = std::ranges::find(part, rank_) - part.begin();
  MPI_Comm session = parent_ == MPI_COMM_NULL ? communicator_ : parent_;
  std::unique_ptr<Backend> backend = std::make_unique<MpiBackend>(
      means_, std::move(members), collective::PartGroupEnds(part, group_ends_),
      static_cast<int>(place), session, MPI_COMM_NULL);
  return backend;
}

}  // namespace

// --- Waiting --------------------------------------------------------------------------------

Means::~Means() {
  if (process_.broken().ok()) return;
  for (Buffer& buffer : staging_) Abandon(std::move(buffer.memory));
}

std::byte* Means::Staging(int which, std::size_t bytes) {
  Buffer& buffer = staging_[which];
  if (buffer.bytes < bytes) {
    buffer.memory = std::make_unique_for_overwrite<std::byte[]>(bytes);
    buffer.bytes = bytes;
  }
  return buffer.memory.get();
}

Status Means::LeaveAlone(const Status& cause) {
  process_.Break(cause);
  return cause;
}

// MPI does not say who is gone, the control plane does, and may do so a little later.
Status Means::WhoseFault(const Status& error) {
  constexpr auto kPatience = std::chrono::seconds(2);
  const TimePoint end = SteadyClock().Now() + kPatience;
  while (SteadyClock().Now() < end) {
    if (const Status cause = stop_.cause(); !cause.ok()) return cause;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return error;
}

// MPI has no way to sleep until an operation is done, and works on it only while it is asked. So
// after the spin the pauses grow with what has passed already, which delays the end by a few
// percent and leaves the processor to others.
Status Means::Complete(std::string_view name, const Start& start,
                       std::optional<TimePoint> deadline) {
  constexpr Duration kLongestPause = std::chrono::microseconds(500);
  constexpr int kPauses = 16;  // a pause is this part of the time so far
  const tensor::DefaultFloatMode default_mode;
  MPI_Request request = MPI_REQUEST_NULL;
  HVL_RETURN_IF_ERROR(MpiStatus(start(&request), name));
  const TimePoint begin = SteadyClock().Now();
  for (;;) {
    int done = 0;
    const Status tested = MpiStatus(MPI_Test(&request, &done, MPI_STATUS_IGNORE), name);
    if (!tested.ok()) return LeaveAlone(WhoseFault(tested));
    if (done != 0) return Status::Ok();
    if (const Status cause = stop_.cause(); !cause.ok()) return LeaveAlone(cause);
    const TimePoint now = SteadyClock().Now();
    if (deadline && now >= *deadline) {
      return LeaveAlone({StatusCode::kTimeout,
                         Format("{} waits for the other processes of MPI's world, and not all have "
                                "come in time (HVL_START_TIMEOUT)",
                                name)});
    }
    if (now - begin >= options_.spin) {
      std::this_thread::sleep_for(std::min((now - begin) / kPauses, kLongestPause));
    } else if (options_.yields) {
      ::sched_yield();
    }
  }
}

std::unique_ptr<collective::Backend> MakeBackend(std::shared_ptr<Means> means,
                                                 MPI_Comm communicator) {
  std::vector<int> ranks(static_cast<std::size_t>(means->options().size));
  std::iota(ranks.begin(), ranks.end(), 0);
  const int rank = means->options().rank;
  std::vector<int> group_ends = means->options().group_ends;
  return std::make_unique<MpiBackend>(std::move(means), std::move(ranks), std::move(group_ends),
                                      rank, MPI_COMM_NULL, communicator);
}

}  // namespace hvl::mpi
