#include "tests/support/reference_backend.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>
#include <variant>

#include "csrc/base/check.h"
#include "csrc/base/mutex.h"
#include "csrc/collective/part.h"
#include "tests/support/reference_reduce.h"

namespace hvl::test {
namespace {

using collective::BroadcastPiece;
using collective::ExchangePiece;
using collective::GatherPiece;
using collective::ReducePiece;
using collective::ScatterPiece;

struct AllreduceCall {
  std::span<const ReducePiece> pieces;
  tensor::ReduceSpec spec;
};
struct BroadcastCall {
  std::span<const BroadcastPiece> pieces;
  int root;
};
struct AllgatherCall {
  std::span<const GatherPiece> pieces;
};
struct ReducescatterCall {
  std::span<const ScatterPiece> pieces;
  tensor::ReduceSpec spec;
};
struct AlltoallCall {
  std::span<const ExchangePiece> pieces;
};
struct BarrierCall {};
using Call = std::variant<std::monostate, AllreduceCall, BroadcastCall, AllgatherCall, BarrierCall,
                          ReducescatterCall, AlltoallCall>;

// Copies that tolerate a source that is the destination, and null for nothing.
void Move(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) std::memmove(to, from, bytes);
}

class Meeting;

// What all backends of a world share: its parts, and what Abort said.
struct Universe {
  Universe(int ranks, std::vector<int> ends)
      : group_ends(std::move(ends)),
        causes(static_cast<std::size_t>(ranks)),
        splits(static_cast<std::size_t>(ranks)) {}

  using Members = std::vector<int>;  // ranks of the world
  const std::vector<int> group_ends;
  Mutex mutex;
  CondVar changed;
  std::vector<Status> causes HVL_GUARDED_BY(mutex);  // by rank of the world
  // The n-th part with the same members that each of them splits off is the same.
  std::map<std::pair<Members, int>, std::weak_ptr<Meeting>> parts HVL_GUARDED_BY(mutex);
  std::vector<std::map<Members, int>> splits HVL_GUARDED_BY(mutex);  // so far, by rank
};

// Where the ranks of a world, or of a part of it, meet.
class Meeting {
 public:
  Meeting(std::shared_ptr<Universe> universe, std::vector<int> world_ranks)
      : universe_(std::move(universe)),
        world_ranks_(std::move(world_ranks)),
        group_ends_(collective::PartGroupEnds(world_ranks_, universe_->group_ends)),
        calls_(world_ranks_.size()) {}

  Status Meet(int rank, const Call& call) {
    MutexLock lock(universe_->mutex);
    const Status& cause = CauseLocked(rank);
    if (!cause.ok()) return cause;
    calls_[static_cast<std::size_t>(rank)] = call;
    if (++arrived_ == calls_.size()) {
      RunFirstLocked();
      arrived_ = 0;
      ++meetings_;
      universe_->changed.notify_all();
      return Status::Ok();
    }
    const std::uint64_t meeting = meetings_;
    while (meetings_ == meeting && cause.ok()) universe_->changed.wait(universe_->mutex);
    // An aborted rank's call stays counted out for ever: this world never meets again.
    if (meetings_ == meeting) --arrived_;
    return meetings_ == meeting ? cause : Status::Ok();
  }

  void Abort(int rank, const Status& cause) {
    const MutexLock lock(universe_->mutex);
    Status& own = CauseLocked(rank);
    if (own.ok()) own = cause;
    universe_->changed.notify_all();
  }

  std::shared_ptr<Meeting> Split(int rank, std::span<const int> places) {
    const MutexLock lock(universe_->mutex);
    std::vector<int> members = collective::WorldRanks(places, world_ranks_);
    const auto world_rank = static_cast<std::size_t>(world_ranks_[static_cast<std::size_t>(rank)]);
    const int number = universe_->splits[world_rank][members]++;
    std::weak_ptr<Meeting>& known = universe_->parts[{members, number}];
    std::shared_ptr<Meeting> part = known.lock();
    if (part == nullptr) part = std::make_shared<Meeting>(universe_, std::move(members));
    known = part;
    return part;
  }

  int ranks() const { return static_cast<int>(world_ranks_.size()); }

 private:
  Status& CauseLocked(int rank) HVL_REQUIRES(universe_->mutex) {
    const int world_rank = world_ranks_[static_cast<std::size_t>(rank)];
    return universe_->causes[static_cast<std::size_t>(world_rank)];
  }
  void RunFirstLocked() HVL_REQUIRES(universe_->mutex) {
    std::visit([this](const auto& first) HVL_REQUIRES(universe_->mutex) { RunLocked(first); },
               calls_[0]);
  }
  void RunLocked(const std::monostate&) HVL_REQUIRES(universe_->mutex) {
    HVL_CHECK(false, "no call");
  }
  void RunLocked(const BarrierCall&) HVL_REQUIRES(universe_->mutex) {}

  void RunLocked(const AllreduceCall& first) HVL_REQUIRES(universe_->mutex) {
    for (std::size_t index = 0; index < first.pieces.size(); ++index) {
      const std::int64_t count = first.pieces[index].element_count;
      std::vector<const void*> inputs;
      for (const Call& call : calls_) {
        const auto& same = std::get<AllreduceCall>(call);
        HVL_CHECK(same.spec == first.spec && same.pieces[index].element_count == count);
        inputs.push_back(same.pieces[index].input);
      }
      std::vector<std::byte> result(static_cast<std::size_t>(count) * DTypeBytes(first.spec.dtype));
      ReferenceReduce(first.spec, group_ends_, inputs, result.data(), count);
      for (const Call& call : calls_) {
        Move(std::get<AllreduceCall>(call).pieces[index].output, result.data(), result.size());
      }
    }
  }

  void RunLocked(const BroadcastCall& first) HVL_REQUIRES(universe_->mutex) {
    const auto& root = std::get<BroadcastCall>(calls_[static_cast<std::size_t>(first.root)]);
    for (const Call& call : calls_) {
      const auto& same = std::get<BroadcastCall>(call);
      HVL_CHECK(same.root == first.root && same.pieces.size() == first.pieces.size());
      for (std::size_t index = 0; index < same.pieces.size(); ++index) {
        HVL_CHECK(same.pieces[index].bytes == root.pieces[index].bytes);
        Move(same.pieces[index].output, root.pieces[index].input, root.pieces[index].bytes);
      }
    }
  }

  void RunLocked(const AllgatherCall& first) HVL_REQUIRES(universe_->mutex) {
    for (std::size_t index = 0; index < first.pieces.size(); ++index) {
      for (const Call& call : calls_) {
        auto* to = static_cast<std::byte*>(std::get<AllgatherCall>(call).pieces[index].output);
        for (std::size_t rank = 0; rank < calls_.size(); ++rank) {
          const std::size_t bytes = first.pieces[index].rank_bytes[rank];
          Move(to, std::get<AllgatherCall>(calls_[rank]).pieces[index].input, bytes);
          if (bytes > 0) to += bytes;
        }
      }
    }
  }

  void RunLocked(const ReducescatterCall& first) HVL_REQUIRES(universe_->mutex) {
    for (std::size_t index = 0; index < first.pieces.size(); ++index) {
      std::size_t begin = 0;
      for (std::size_t rank = 0; rank < calls_.size(); ++rank) {
        const std::int64_t count = first.pieces[index].rank_elements[rank];
        if (count == 0) continue;  // pointers may be null
        std::vector<const void*> inputs;
        for (const Call& call : calls_) {
          const auto& same = std::get<ReducescatterCall>(call);
          HVL_CHECK(same.spec == first.spec && same.pieces[index].rank_elements[rank] == count);
          inputs.push_back(static_cast<const std::byte*>(same.pieces[index].input) + begin);
        }
        void* const output = std::get<ReducescatterCall>(calls_[rank]).pieces[index].output;
        ReferenceReduce(first.spec, group_ends_, inputs, output, count);
        begin += static_cast<std::size_t>(count) * DTypeBytes(first.spec.dtype);
      }
    }
  }

  void RunLocked(const AlltoallCall& first) HVL_REQUIRES(universe_->mutex) {
    const std::size_t ranks = calls_.size();
    for (std::size_t index = 0; index < first.pieces.size(); ++index) {
      std::vector<std::size_t> received(ranks, 0);  // so far, by rank
      for (std::size_t from = 0; from < ranks; ++from) {
        const auto& source = std::get<AlltoallCall>(calls_[from]).pieces[index];
        HVL_CHECK(std::ranges::equal(source.bytes, first.pieces[index].bytes));
        std::size_t sent = 0;
        for (std::size_t to = 0; to < ranks; ++to) {
          const std::size_t bytes = source.bytes[from * ranks + to];
          if (bytes == 0) continue;  // pointers may be null
          const auto& target = std::get<AlltoallCall>(calls_[to]).pieces[index];
          Move(static_cast<std::byte*>(target.output) + received[to],
               static_cast<const std::byte*>(source.input) + sent, bytes);
          sent += bytes;
          received[to] += bytes;
        }
      }
    }
  }

  const std::shared_ptr<Universe> universe_;  // shared by the meetings of a world
  const std::vector<int> world_ranks_;
  const std::vector<int> group_ends_;
  std::vector<Call> calls_ HVL_GUARDED_BY(universe_->mutex);
  std::size_t arrived_ HVL_GUARDED_BY(universe_->mutex) = 0;
  std::uint64_t meetings_ HVL_GUARDED_BY(universe_->mutex) = 0;
};

class ReferenceBackend final : public collective::Backend {
 public:
  ReferenceBackend(int rank, std::shared_ptr<Meeting> meeting)
      : rank_(rank), meeting_(std::move(meeting)) {}

  std::string_view name() const override { return "reference"; }
  Status Allreduce(std::span<const ReducePiece> pieces, const tensor::ReduceSpec& spec) override {
    HVL_RETURN_IF_ERROR(tensor::CheckElementwise(spec));
    return meeting_->Meet(rank_, AllreduceCall{pieces, spec});
  }
  Status Broadcast(std::span<const BroadcastPiece> pieces, int root) override {
    return meeting_->Meet(rank_, BroadcastCall{pieces, root});
  }
  Status Allgather(std::span<const GatherPiece> pieces) override {
    return meeting_->Meet(rank_, AllgatherCall{pieces});
  }
  Status Barrier() override { return meeting_->Meet(rank_, BarrierCall{}); }
  Status Reducescatter(std::span<const ScatterPiece> pieces,
                       const tensor::ReduceSpec& spec) override {
    HVL_RETURN_IF_ERROR(tensor::CheckElementwise(spec));
    return meeting_->Meet(rank_, ReducescatterCall{pieces, spec});
  }
  Status Alltoall(std::span<const ExchangePiece> pieces) override {
    return meeting_->Meet(rank_, AlltoallCall{pieces});
  }
  Result<std::unique_ptr<collective::Backend>> Split(std::span<const int> ranks) override {
    HVL_RETURN_IF_ERROR(collective::CheckPart(ranks, rank_, meeting_->ranks()));
    const int place = static_cast<int>(std::ranges::find(ranks, rank_) - ranks.begin());
    std::unique_ptr<collective::Backend> part =
        std::make_unique<ReferenceBackend>(place, meeting_->Split(rank_, ranks));
    return part;
  }
  void Abort(const Status& cause) override { meeting_->Abort(rank_, cause); }
  Result<SharedBuffer> Allocate(std::size_t) override {
    return Status(StatusCode::kNotSupported, "the reference backend shares all memory anyway");
  }

 private:
  const int rank_;
  const std::shared_ptr<Meeting> meeting_;  // shared by the backends that meet there
};

}  // namespace

std::vector<std::unique_ptr<collective::Backend>> MakeReferenceWorld(int ranks,
                                                                     std::vector<int> group_ends) {
  std::vector<int> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  const auto meeting = std::make_shared<Meeting>(
      std::make_shared<Universe>(ranks, std::move(group_ends)), std::move(all));
  std::vector<std::unique_ptr<collective::Backend>> world;
  for (int rank = 0; rank < ranks; ++rank) {
    world.push_back(std::make_unique<ReferenceBackend>(rank, meeting));
  }
  return world;
}

}  // namespace hvl::test
