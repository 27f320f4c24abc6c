// Operations on memory that all ranks can see: each rank works on its peers' memory in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "csrc/collective/backend.h"
#include "csrc/collective/local_arena.h"
#include "csrc/collective/piece_list.h"
#include "csrc/tensor/reduce.h"
#include "horovodlite/status.h"

namespace hvl::collective {

/// Where a piece lies in its rank's heap, as published to the peers. All bits set = elsewhere.
struct PiecePlace {
  static constexpr std::uint64_t kElsewhere = ~std::uint64_t{0};
  std::uint64_t input = kElsewhere;
  std::uint64_t output = kElsewhere;

  bool HasInputInHeap() const { return input != kElsewhere; }
  bool HasOutputInHeap() const { return output != kElsewhere; }
};

/// A piece of a rank's contribution to a gather, as published to the peers.
struct HeapRun {
  std::uint64_t offset;
  std::uint64_t bytes;
};

/// The offset of [address, address + bytes) in the heap of `arena`, or kElsewhere.
std::uint64_t PlaceInHeap(const Arena& arena, const void* address, std::size_t bytes);

/// The address in this process of `bytes` at `offset` in the heap of `arena`; null when they do not
/// lie in it (offsets come from peers).
std::byte* AtPlace(const Arena& arena, std::uint64_t offset, std::size_t bytes);

/// Where the inputs of `list` lie in this rank's arena; empty if not all of them do, or if there
/// are more than `most`.
std::vector<HeapRun> InputRuns(const Arena& own, const PieceList& list, std::size_t most);

/// Copies the contribution of the rank that owns `arena` from there to the outputs of `list`.
/// Internal if the runs it has published are not `list` bytes of its heap.
Status FetchRuns(const Arena& arena, int owner, std::span<const HeapRun> runs,
                 const PieceList& list);

/// Reads records that a peer has shown. A copy, because what is shown may change if the peer has
/// gone mad.
template <typename Record>
std::vector<Record> ReadRecords(std::span<const std::byte> shown) {
  std::vector<Record> records(shown.size() / sizeof(Record));
  if (!records.empty()) {
    std::memcpy(records.data(), shown.data(), records.size() * sizeof(Record));
  }
  return records;
}

/// The pieces of an allreduce whose outputs lie in shared memory on all ranks. They form one long
/// vector, cut into one slice per rank; rank r adds slice r of all ranks' inputs, in rank order,
/// and writes the result to slice r of all ranks' outputs. With N bytes, each rank reads N and
/// writes N: the least possible for a result that every rank may change.
///
/// An input that its rank alone can see (a gradient where autograd has put it) is *shared* first:
/// the rank copies the slices that others reduce to its output, and the others read them there. Its
/// own slice it reads where it is: with n ranks (n-1)/n N bytes are copied, not N.
class DirectReduction {
 public:
  /// `world_ranks`: how errors name the ranks.
  DirectReduction(int rank, std::span<const Arena* const> arenas, std::span<const int> world_ranks,
                  std::span<const int> group_ends)
      : rank_(rank), arenas_(arenas), world_ranks_(world_ranks), group_ends_(group_ends) {}

  /// Adds a piece; `places` holds each rank's, all of them with an output in the heap, and `input`
  /// is this rank's. Internal if one is outside its arena.
  Status Add(std::span<const PiecePlace> places, const void* input, std::size_t bytes);
  std::size_t bytes() const { return bytes_; }
  /// Some rank has to share: then all ranks have to meet between Share and Run.
  bool needs_sharing() const { return needs_sharing_; }

  /// Copies what this rank alone can see to where its peers read it. Every rank must have entered
  /// the operation.
  void Share() const;
  /// Reduces this rank's slice. Every rank must have entered the operation; afterwards all must
  /// meet before anyone touches a result.
  void Run(const tensor::ReduceSpec& spec) const;

 private:
  struct Piece {
    std::size_t begin;
    std::size_t bytes;
  };
  bool Continues(std::span<const std::byte* const> inputs,
                 std::span<std::byte* const> outputs) const;
  /// Where the slice of a rank begins.
  std::size_t Cut(int rank) const;
  /// Calls visit(index, skipped, bytes) for the parts of pieces that lie in [begin, end).
  template <typename Visit>
  void ForEach(std::size_t begin, std::size_t end, Visit visit) const;
  void ShareSlices(std::size_t begin, std::size_t end) const;

  const int rank_;
  const std::span<const Arena* const> arenas_;
  const std::span<const int> world_ranks_;
  const std::span<const int> group_ends_;
  std::vector<Piece> pieces_;
  std::vector<const std::byte*> inputs_;  ///< of piece 0 by rank, then of piece 1, ...
  std::vector<std::byte*> outputs_;
  std::size_t bytes_ = 0;
  bool needs_sharing_ = false;
};

}  // namespace hvl::collective
