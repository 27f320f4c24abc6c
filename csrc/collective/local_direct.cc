#include "csrc/collective/local_direct.h"

#include <algorithm>

#include "csrc/base/str.h"

namespace hvl::collective {

std::uint64_t PlaceInHeap(const Arena& arena, const void* address, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(arena.heap());
  const auto offset = reinterpret_cast<std::uintptr_t>(address) - begin;  // wraps if below
  const std::size_t heap_bytes = arena.layout().heap_bytes;
  return offset <= heap_bytes && bytes <= heap_bytes - offset ? offset : PiecePlace::kElsewhere;
}

std::byte* AtPlace(const Arena& arena, std::uint64_t offset, std::size_t bytes) {
  const std::size_t heap_bytes = arena.layout().heap_bytes;
  return offset <= heap_bytes && bytes <= heap_bytes - offset ? arena.heap() + offset : nullptr;
}

std::vector<HeapRun> InputRuns(const Arena& own, const PieceList& list, std::size_t most) {
  if (list.pieces().size() > most) return {};
  std::vector<HeapRun> runs;
  for (const PieceList::Piece& piece : list.pieces()) {
    const std::uint64_t offset = PlaceInHeap(own, piece.input, piece.bytes);
    if (offset == PiecePlace::kElsewhere) return {};
    runs.push_back({.offset = offset, .bytes = piece.bytes});
  }
  return runs;
}

Status FetchRuns(const Arena& arena, int owner, std::span<const HeapRun> runs,
                 const PieceList& list) {
  std::size_t begin = 0;
  for (const HeapRun& run : runs) {
    const std::byte* const from = AtPlace(arena, run.offset, run.bytes);
    if (from == nullptr || run.bytes > list.bytes() - begin) break;
    list.Scatter(begin, begin + run.bytes, from);
    begin += run.bytes;
  }
  if (begin == list.bytes()) return Status::Ok();
  return Status(StatusCode::kInternal,
                Format("rank {} has published {} runs of memory that are not {} bytes of its heap",
                       owner, runs.size(), list.bytes()),
                owner);
}

Status DirectReduction::Add(std::span<const PiecePlace> places, const void* input,
                            std::size_t bytes) {
  if (bytes == 0) return Status::Ok();
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  for (std::size_t rank = 0; rank < arenas_.size(); ++rank) {
    const PiecePlace& place = places[rank];
    const bool shares = !place.HasInputInHeap();
    needs_sharing_ = needs_sharing_ || shares;
    inputs.push_back(AtPlace(*arenas_[rank], shares ? place.output : place.input, bytes));
    outputs.push_back(AtPlace(*arenas_[rank], place.output, bytes));
    if (inputs.back() == nullptr || outputs.back() == nullptr) {
      return Status(StatusCode::kInternal,
                    Format("rank {} has published {} bytes at {} and {}, outside of its heap",
                           world_ranks_[rank], bytes, place.input, place.output),
                    world_ranks_[rank]);
    }
  }
  inputs[static_cast<std::size_t>(rank_)] = static_cast<const std::byte*>(input);
  if (Continues(inputs, outputs)) {
    pieces_.back().bytes += bytes;
  } else {
    pieces_.push_back({.begin = bytes_, .bytes = bytes});
    inputs_.insert(inputs_.end(), inputs.begin(), inputs.end());
    outputs_.insert(outputs_.end(), outputs.begin(), outputs.end());
  }
  bytes_ += bytes;
  return Status::Ok();
}

bool DirectReduction::Continues(std::span<const std::byte* const> inputs,
                                std::span<std::byte* const> outputs) const {
  if (pieces_.empty()) return false;
  const std::size_t last = (pieces_.size() - 1) * arenas_.size();
  for (std::size_t rank = 0; rank < arenas_.size(); ++rank) {
    if (inputs_[last + rank] + pieces_.back().bytes != inputs[rank]) return false;
    if (outputs_[last + rank] + pieces_.back().bytes != outputs[rank]) return false;
  }
  return true;
}

std::size_t DirectReduction::Cut(int rank) const {
  const std::size_t ranks = arenas_.size();
  if (static_cast<std::size_t>(rank) == ranks) return bytes_;
  return RoundDown(bytes_ / ranks * static_cast<std::size_t>(rank), kLineBytes);
}

template <typename Visit>
void DirectReduction::ForEach(std::size_t begin, std::size_t end, Visit visit) const {
  const auto first = std::ranges::upper_bound(pieces_, begin, {}, &Piece::begin);
  for (auto piece = first - (begin < end ? 1 : 0); begin < end; ++piece) {
    const std::size_t skipped = begin - piece->begin;
    const std::size_t bytes = std::min(piece->bytes - skipped, end - begin);
    visit(static_cast<std::size_t>(piece - pieces_.begin()) * arenas_.size(), skipped, bytes);
    begin += bytes;
  }
}

void DirectReduction::Share() const {
  ShareSlices(0, Cut(rank_));
  ShareSlices(Cut(rank_ + 1), bytes_);
}

void DirectReduction::ShareSlices(std::size_t begin, std::size_t end) const {
  ForEach(begin, end, [this](std::size_t index, std::size_t skipped, std::size_t bytes) {
    const std::byte* const input = inputs_[index + static_cast<std::size_t>(rank_)];
    if (PlaceInHeap(*arenas_[static_cast<std::size_t>(rank_)], input, bytes) !=
        PiecePlace::kElsewhere) {
      return;
    }
    std::byte* const output = outputs_[index + static_cast<std::size_t>(rank_)];
    tensor::Copy(output + skipped, input + skipped, bytes);
  });
}

void DirectReduction::Run(const tensor::ReduceSpec& spec) const {
  std::vector<const void*> inputs(arenas_.size());
  std::vector<tensor::Output> outputs(arenas_.size());
  ForEach(Cut(rank_), Cut(rank_ + 1),
          [&](std::size_t index, std::size_t skipped, std::size_t bytes) {
            for (std::size_t rank = 0; rank < arenas_.size(); ++rank) {
              inputs[rank] = inputs_[index + rank] + skipped;
              outputs[rank].data = outputs_[index + rank] + skipped;
            }
            tensor::Reduce(spec, group_ends_, inputs, outputs,
                           static_cast<std::int64_t>(bytes / DTypeBytes(spec.dtype)));
          });
}

}  // namespace hvl::collective
