#include "csrc/collective/local_backend.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/collective/exchange_parts.h"
#include "csrc/collective/part.h"

namespace hvl::collective {
namespace {

using tensor::ReduceSpec;
using tensor::StoreHint;

// Up to here one exchange, after which every rank reduces everything, beats two with less work.
constexpr std::size_t kSmallBytes = 8192;
static_assert(kSmallBytes <= kMaxPayloadBytes);

// An exchange that takes longer is one between distant cores, which do not share a third-level
// cache. There, writing to lines that the peer has read takes four times as long as sending them
// past the caches to memory, from where the peer reads them; between near cores memory is the
// slower way, by a factor of 1.7. Measured: 60 to 110 ns between near cores, 160 to 330 ns between
// distant ones (docs/decisions/0017-stores-by-distance.md).
constexpr Duration kFarExchange = std::chrono::nanoseconds(120);
constexpr int kProbes = 4;
// The system moves threads between cores now and then. Where there are fewer cores than ranks each
// meeting takes long, so not too often.
constexpr unsigned kProbeEvery = 8;
constexpr std::uint16_t kProbeMark = 0x7b0b;

// A hash of what ranks must agree on, shown with every exchange.
std::uint16_t Mark(OpKind kind, std::size_t bytes, std::uint64_t details) {
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15;  // 2^64 / golden ratio
  const std::uint64_t mixed = (bytes * kOdd ^ details) * kOdd + static_cast<std::uint64_t>(kind);
  return static_cast<std::uint16_t>((mixed * kOdd) >> 48);
}

std::uint16_t ReductionMark(OpKind kind, std::size_t bytes, const ReduceSpec& spec) {
  const auto details = static_cast<std::uint64_t>(spec.dtype) << 8 | static_cast<unsigned>(spec.op);
  return Mark(kind, bytes, details);
}

// The exchange after which the ranks may read what their peers have copied to shared memory.
std::uint16_t SharedMark(std::uint16_t mark) { return static_cast<std::uint16_t>(mark ^ 0x5a5a); }

// The exchange that ends an operation on shared memory.
std::uint16_t EndMark(std::uint16_t mark) { return static_cast<std::uint16_t>(~mark); }

std::vector<const Arena*> ByRank(int rank, const std::shared_ptr<Arena>& own,
                                 const std::vector<std::unique_ptr<Arena>>& peers) {
  std::vector<const Arena*> arenas;
  for (const std::unique_ptr<Arena>& peer : peers) arenas.push_back(peer.get());
  arenas[static_cast<std::size_t>(rank)] = own.get();
  return arenas;
}

std::vector<const Arena*> AtPlaces(std::span<const int> places,
                                   const std::vector<const Arena*>& arenas) {
  std::vector<const Arena*> chosen;
  for (const int place : places) chosen.push_back(arenas[static_cast<std::size_t>(place)]);
  return chosen;
}

PieceList ToList(std::span<const ReducePiece> pieces, std::size_t element_bytes) {
  PieceList list;
  for (const ReducePiece& piece : pieces) {
    list.Add(piece.input, piece.output,
             static_cast<std::size_t>(piece.element_count) * element_bytes);
  }
  return list;
}

std::vector<PiecePlace> PlacesOf(std::span<const ReducePiece> pieces, std::size_t element_bytes,
                                 const Arena& own) {
  std::vector<PiecePlace> places;
  for (const ReducePiece& piece : pieces) {
    const std::size_t bytes = static_cast<std::size_t>(piece.element_count) * element_bytes;
    places.push_back({.input = PlaceInHeap(own, piece.input, bytes),
                      .output = PlaceInHeap(own, piece.output, bytes)});
  }
  return places;
}

void ReduceAlone(const PieceList& list, const ReduceSpec& spec) {
  for (const PieceList::Piece& piece : list.pieces()) {
    const void* const input = piece.input;
    tensor::Reduce(spec, std::span<const void* const>(&input, 1), piece.output,
                   static_cast<std::int64_t>(piece.bytes / DTypeBytes(spec.dtype)));
  }
}

std::size_t TotalBytes(std::span<const PieceList> lists) {
  std::size_t bytes = 0;
  for (const PieceList& list : lists) bytes += list.bytes();
  return bytes;
}

// Of all ranks' parts.
std::size_t InputBytes(const ScatterPiece& piece, std::size_t element_bytes) {
  const auto& elements = piece.rank_elements;
  const auto total = std::accumulate(elements.begin(), elements.end(), std::int64_t{0});
  return static_cast<std::size_t>(total) * element_bytes;
}

void CopyIfApart(void* output, const void* input, std::size_t bytes) {
  if (output != input) tensor::Copy(output, input, bytes);
}

}  // namespace

LocalBackend::LocalBackend(int rank, std::shared_ptr<Arena> own,
                           std::vector<std::unique_ptr<Arena>> peers, Duration spin,
                           std::vector<int> group_ends, int first_rank)
    : rank_(rank),
      own_(std::move(own)),
      peers_(std::move(peers)),
      arenas_(ByRank(rank, own_, peers_)),
      group_ends_(std::move(group_ends)),
      heap_(std::make_shared<SharedHeap>(own_)),
      board_(rank, arenas_, spin, first_rank),
      scratch_(kSmallBytes) {}

LocalBackend::LocalBackend(const LocalBackend& parent, std::span<const int> places)
    : rank_(static_cast<int>(std::ranges::find(places, parent.rank_) - places.begin())),
      own_(parent.own_),
      arenas_(AtPlaces(places, parent.arenas_)),
      group_ends_(PartGroupEnds(places, parent.group_ends_)),
      heap_(parent.heap_),
      board_(parent.board_, places),
      scratch_(kSmallBytes) {}

Result<std::unique_ptr<Backend>> LocalBackend::Split(std::span<const int> ranks_of_part) {
  HVL_RETURN_IF_ERROR(CheckPart(ranks_of_part, rank_, ranks()));
  if (ranks_of_part.size() > 1) HVL_RETURN_IF_ERROR(own_->CommitLane(Lane::kSets));
  std::unique_ptr<Backend> part = std::make_unique<LocalBackend>(*this, ranks_of_part);
  return part;
}

Status LocalBackend::Allreduce(std::span<const ReducePiece> pieces, const ReduceSpec& spec) {
  HVL_RETURN_IF_ERROR(board_.aborted());
  HVL_RETURN_IF_ERROR(tensor::CheckElementwise(spec));
  const PieceList list = ToList(pieces, DTypeBytes(spec.dtype));
  if (ranks() == 1) {
    ReduceAlone(list, spec);
    return Status::Ok();
  }
  if (list.bytes() == 0) return Status::Ok();  // on every rank
  const std::uint16_t mark = ReductionMark(OpKind::kAllreduce, list.bytes(), spec);
  if (list.bytes() <= kSmallBytes) return SmallAllreduce(list, spec, mark);
  return LargeAllreduce(pieces, spec, mark);
}

// Every rank shows all its data and reduces all: one exchange, whatever the number of ranks.
Status LocalBackend::SmallAllreduce(const PieceList& list, const ReduceSpec& spec,
                                    std::uint16_t mark) {
  const std::size_t bytes = list.bytes();
  list.Gather(0, bytes, board_.Payload(bytes));
  HVL_RETURN_IF_ERROR(board_.Exchange(mark, bytes));
  HVL_RETURN_IF_ERROR(ReduceShown(list, 0, bytes, spec));
  return EndOperation(mark, false);
}

Status LocalBackend::ReduceShown(const PieceList& list, std::size_t begin, std::size_t shown_bytes,
                                 const ReduceSpec& spec) {
  std::vector<const void*> inputs;
  for (int rank = 0; rank < ranks(); ++rank) {
    HVL_RETURN_IF_ERROR(CheckShown(rank, shown_bytes));
    inputs.push_back(board_.Shown(rank).data() + begin);
  }
  const auto count = static_cast<std::int64_t>(list.bytes() / DTypeBytes(spec.dtype));
  if (list.pieces().size() == 1) {
    tensor::Reduce(spec, group_ends_, inputs, list.pieces()[0].output, count);
  } else {
    tensor::Reduce(spec, group_ends_, inputs, scratch_.data(), count);
    list.Scatter(0, list.bytes(), scratch_.data());
  }
  return Status::Ok();
}

Status LocalBackend::LargeAllreduce(std::span<const ReducePiece> pieces, const ReduceSpec& spec,
                                    std::uint16_t mark) {
  const std::size_t element_bytes = DTypeBytes(spec.dtype);
  std::vector<PiecePlace> places;
  if (pieces.size() <= kMaxPayloadBytes / sizeof(PiecePlace)) {
    places = PlacesOf(pieces, element_bytes, *own_);
  }
  const std::size_t shown_bytes = places.size() * sizeof(PiecePlace);
  if (shown_bytes > 0) std::memcpy(board_.Payload(shown_bytes), places.data(), shown_bytes);
  HVL_RETURN_IF_ERROR(board_.Exchange(mark, shown_bytes));

  DirectReduction direct(rank_, arenas_, board_.world_ranks(), group_ends_);
  PieceList staged;
  HVL_RETURN_IF_ERROR(Divide(pieces, element_bytes, direct, staged));
  if (direct.needs_sharing()) {
    direct.Share();
    HVL_RETURN_IF_ERROR(board_.Exchange(SharedMark(mark), 0));
  }
  direct.Run(spec);
  if (staged.bytes() > 0) {
    HVL_ASSIGN_OR_RETURN(const Staging staging, PrepareStaging());
    HVL_RETURN_IF_ERROR(StagedAllreduce(staging, staged, spec));
  }
  return EndOperation(mark, direct.bytes() > 0);
}

Status LocalBackend::Divide(std::span<const ReducePiece> pieces, std::size_t element_bytes,
                            DirectReduction& direct, PieceList& staged) const {
  std::vector<std::vector<PiecePlace>> places;
  bool all_shown = true;
  for (int rank = 0; rank < ranks(); ++rank) {
    places.push_back(ReadRecords<PiecePlace>(board_.Shown(rank)));
    all_shown = all_shown && places.back().size() == pieces.size();
  }
  if (!all_shown) {
    staged = ToList(pieces, element_bytes);
    return Status::Ok();
  }
  std::vector<PiecePlace> of_piece(places.size());
  for (std::size_t index = 0; index < pieces.size(); ++index) {
    const ReducePiece& piece = pieces[index];
    const std::size_t bytes = static_cast<std::size_t>(piece.element_count) * element_bytes;
    for (std::size_t rank = 0; rank < places.size(); ++rank) of_piece[rank] = places[rank][index];
    if (std::ranges::all_of(of_piece, &PiecePlace::HasOutputInHeap)) {
      HVL_RETURN_IF_ERROR(direct.Add(of_piece, piece.input, bytes));
    } else {
      staged.Add(piece.input, piece.output, bytes);
    }
  }
  return Status::Ok();
}

Status LocalBackend::Reducescatter(std::span<const ScatterPiece> pieces, const ReduceSpec& spec) {
  HVL_RETURN_IF_ERROR(board_.aborted());
  HVL_RETURN_IF_ERROR(tensor::CheckElementwise(spec));
  const std::vector<PieceList> parts = PartsByOwner(pieces, DTypeBytes(spec.dtype));
  if (ranks() == 1) {
    ReduceAlone(parts[0], spec);
    return Status::Ok();
  }
  const std::size_t bytes = TotalBytes(parts);
  if (bytes == 0) return Status::Ok();  // on every rank
  const std::uint16_t mark = ReductionMark(OpKind::kReducescatter, bytes, spec);
  return bytes <= kSmallBytes ? SmallReducescatter(parts, spec, mark)
                              : LargeReducescatter(pieces, spec, mark);
}

std::vector<PieceList> LocalBackend::PartsByOwner(std::span<const ScatterPiece> pieces,
                                                  std::size_t element_bytes) const {
  std::vector<PieceList> parts(arenas_.size());
  for (const ScatterPiece& piece : pieces) {
    HVL_CHECK(piece.rank_elements.size() == parts.size(), "one part per rank");
    const auto* input = static_cast<const std::byte*>(piece.input);
    for (std::size_t owner = 0; owner < parts.size(); ++owner) {
      const auto bytes = static_cast<std::size_t>(piece.rank_elements[owner]) * element_bytes;
      if (bytes == 0) continue;  // the input may be null
      parts[owner].Add(input, static_cast<int>(owner) == rank_ ? piece.output : nullptr, bytes);
      input += bytes;
    }
  }
  return parts;
}

// Every rank shows all its data and reduces its own part.
Status LocalBackend::SmallReducescatter(std::span<const PieceList> parts, const ReduceSpec& spec,
                                        std::uint16_t mark) {
  const std::size_t bytes = TotalBytes(parts);
  const auto own = static_cast<std::size_t>(rank_);
  std::byte* to = board_.Payload(bytes);
  for (const PieceList& part : parts) {
    part.Gather(0, part.bytes(), to);
    to += part.bytes();
  }
  HVL_RETURN_IF_ERROR(board_.Exchange(mark, bytes));
  HVL_RETURN_IF_ERROR(ReduceShown(parts[own], TotalBytes(parts.first(own)), bytes, spec));
  return EndOperation(mark, false);
}

// Each rank reads its part of the inputs that lie in shared memory in place, and writes to its own
// output, wherever that is; the rest passes through staging.
Status LocalBackend::LargeReducescatter(std::span<const ScatterPiece> pieces,
                                        const ReduceSpec& spec, std::uint16_t mark) {
  const std::size_t element_bytes = DTypeBytes(spec.dtype);
  std::vector<std::uint64_t> places;
  if (pieces.size() <= kMaxPayloadBytes / sizeof(std::uint64_t)) {
    for (const ScatterPiece& piece : pieces) {
      places.push_back(PlaceInHeap(*own_, piece.input, InputBytes(piece, element_bytes)));
    }
  }
  const std::size_t shown_bytes = places.size() * sizeof(std::uint64_t);
  if (shown_bytes > 0) std::memcpy(board_.Payload(shown_bytes), places.data(), shown_bytes);
  HVL_RETURN_IF_ERROR(board_.Exchange(mark, shown_bytes));

  std::vector<std::vector<std::uint64_t>> shown;
  for (int rank = 0; rank < ranks(); ++rank) {
    HVL_RETURN_IF_ERROR(CheckShown(rank, shown_bytes));
    shown.push_back(ReadRecords<std::uint64_t>(board_.Shown(rank)));
  }
  std::vector<ScatterPiece> staged;
  std::vector<std::uint64_t> of_piece(shown.size(), PiecePlace::kElsewhere);
  for (std::size_t index = 0; index < pieces.size(); ++index) {
    for (std::size_t rank = 0; rank < shown.size() && !places.empty(); ++rank) {
      of_piece[rank] = shown[rank][index];
    }
    HVL_ASSIGN_OR_RETURN(const bool done, ReduceInPlace(pieces[index], of_piece, spec));
    if (!done) staged.push_back(pieces[index]);
  }
  const std::vector<PieceList> parts = PartsByOwner(staged, element_bytes);
  if (TotalBytes(parts) > 0) {
    HVL_ASSIGN_OR_RETURN(const Staging staging, PrepareStaging());
    HVL_RETURN_IF_ERROR(StagedReducescatter(staging, parts, spec));
  }
  const bool any_direct = staged.size() < pieces.size();
  return EndOperation(mark, any_direct);
}

Result<bool> LocalBackend::ReduceInPlace(const ScatterPiece& piece,
                                         std::span<const std::uint64_t> places,
                                         const ReduceSpec& spec) const {
  if (std::ranges::count(places, PiecePlace::kElsewhere) > 0) return false;
  const std::size_t element_bytes = DTypeBytes(spec.dtype);
  const std::size_t bytes = InputBytes(piece, element_bytes);
  const auto own = static_cast<std::size_t>(rank_);
  const auto before = piece.rank_elements.first(own);
  const auto begin =
      static_cast<std::size_t>(std::accumulate(before.begin(), before.end(), std::int64_t{0}));
  std::vector<const void*> inputs;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const std::byte* const input = AtPlace(*arenas_[rank], places[rank], bytes);
    if (input == nullptr) {
      return Status(StatusCode::kInternal,
                    Format("rank {} has published {} bytes at {}, outside of its heap",
                           WorldRank(static_cast<int>(rank)), bytes, places[rank]),
                    WorldRank(static_cast<int>(rank)));
    }
    inputs.push_back(input + begin * element_bytes);
  }
  tensor::Reduce(spec, group_ends_, inputs, piece.output, piece.rank_elements[own]);
  return true;
}

Status LocalBackend::Broadcast(std::span<const BroadcastPiece> pieces, int root) {
  HVL_RETURN_IF_ERROR(board_.aborted());
  if (root < 0 || root >= ranks()) {
    return Status(StatusCode::kInvalidArgument,
                  Format("broadcast from rank {}, but there are only {} ranks", root, ranks()));
  }
  std::vector<PieceList> sources(arenas_.size());
  PieceList& source = sources[static_cast<std::size_t>(root)];
  for (const BroadcastPiece& piece : pieces) {
    if (rank_ == root) {
      CopyIfApart(piece.output, piece.input, piece.bytes);
      source.Add(piece.input, nullptr, piece.bytes);
    } else {
      source.Add(nullptr, piece.output, piece.bytes);
    }
  }
  return Gather(sources, Mark(OpKind::kBroadcast, source.bytes(), static_cast<unsigned>(root)));
}

Status LocalBackend::Allgather(std::span<const GatherPiece> pieces) {
  HVL_RETURN_IF_ERROR(board_.aborted());
  std::vector<PieceList> sources(arenas_.size());
  std::size_t total_bytes = 0;
  for (const GatherPiece& piece : pieces) {
    HVL_CHECK(piece.rank_bytes.size() == sources.size());
    auto* output = static_cast<std::byte*>(piece.output);
    for (std::size_t rank = 0; rank < sources.size(); ++rank) {
      const std::size_t bytes = piece.rank_bytes[rank];
      if (bytes == 0) continue;  // the output may be null
      if (static_cast<int>(rank) == rank_) {
        CopyIfApart(output, piece.input, bytes);
        sources[rank].Add(piece.input, nullptr, bytes);
      } else {
        sources[rank].Add(nullptr, output, bytes);
      }
      output += bytes;
      total_bytes += bytes;
    }
  }
  return Gather(sources, Mark(OpKind::kAllgather, total_bytes, pieces.size()));
}

// As a gather of what every rank has for all others, of which a rank takes what is for itself. Each
// rank begins with what its right neighbour gets, so that all have something to take at all times.
Status LocalBackend::Alltoall(std::span<const ExchangePiece> pieces) {
  HVL_RETURN_IF_ERROR(board_.aborted());
  const auto own = static_cast<std::size_t>(rank_);
  const std::size_t count = arenas_.size();
  std::vector<std::vector<ExchangePart>> parts;  // by piece, then peer
  for (const ExchangePiece& piece : pieces) {
    parts.push_back(PartsByPeer(piece, rank_, ranks()));
    const ExchangePart& kept = parts.back()[own];
    tensor::Copy(kept.incoming.data(), kept.outgoing.data(), kept.outgoing.size());
  }
  std::vector<PieceList> sources(count);
  for (std::size_t from = 0; from < count; ++from) {
    for (std::size_t distance = 1; distance < count; ++distance) {
      const std::size_t to = (from + distance) % count;
      for (std::size_t index = 0; index < pieces.size(); ++index) {
        sources[from].Add(from == own ? parts[index][to].outgoing.data() : nullptr,
                          to == own ? parts[index][from].incoming.data() : nullptr,
                          pieces[index].bytes[from * count + to]);
      }
    }
  }
  return Gather(sources, Mark(OpKind::kAlltoall, TotalBytes(sources), pieces.size()));
}

Status LocalBackend::Barrier() {
  HVL_RETURN_IF_ERROR(board_.aborted());
  return board_.Exchange(Mark(OpKind::kBarrier, 0, 0), 0);
}

Status LocalBackend::Gather(std::span<const PieceList> sources, std::uint16_t mark) {
  const std::size_t most = std::ranges::max(sources, {}, &PieceList::bytes).bytes();
  if (most == 0 || ranks() == 1) return Status::Ok();
  return most <= kSmallBytes ? SmallGather(sources, mark) : LargeGather(sources, mark);
}

Status LocalBackend::SmallGather(std::span<const PieceList> sources, std::uint16_t mark) {
  const PieceList& own = sources[static_cast<std::size_t>(rank_)];
  own.Gather(0, own.bytes(), board_.Payload(own.bytes()));
  HVL_RETURN_IF_ERROR(board_.Exchange(mark, own.bytes()));
  for (int rank = 0; rank < ranks(); ++rank) {
    const PieceList& source = sources[static_cast<std::size_t>(rank)];
    if (rank == rank_) continue;
    HVL_RETURN_IF_ERROR(CheckShown(rank, source.bytes()));
    source.Scatter(0, source.bytes(), board_.Shown(rank).data());
  }
  return EndOperation(mark, false);
}

// What lies in shared memory is copied from there by everybody, the rest passes through staging.
Status LocalBackend::LargeGather(std::span<const PieceList> sources, std::uint16_t mark) {
  const PieceList& own = sources[static_cast<std::size_t>(rank_)];
  const std::vector<HeapRun> own_runs = InputRuns(*own_, own, kMaxPayloadBytes / sizeof(HeapRun));
  const std::size_t shown_bytes = own_runs.size() * sizeof(HeapRun);
  if (shown_bytes > 0) std::memcpy(board_.Payload(shown_bytes), own_runs.data(), shown_bytes);
  HVL_RETURN_IF_ERROR(board_.Exchange(mark, shown_bytes));

  std::vector<PieceList> staged(sources.begin(), sources.end());
  bool any_direct = false;
  for (int rank = 0; rank < ranks(); ++rank) {
    const auto runs = ReadRecords<HeapRun>(board_.Shown(rank));
    if (runs.empty()) continue;
    const auto index = static_cast<std::size_t>(rank);
    any_direct = true;
    if (rank != rank_) {
      HVL_RETURN_IF_ERROR(FetchRuns(*arenas_[index], WorldRank(rank), runs, sources[index]));
    }
    staged[index] = PieceList();
  }
  HVL_ASSIGN_OR_RETURN(const Staging staging, PrepareStaging());
  HVL_RETURN_IF_ERROR(StagedGather(staging, staged));
  return EndOperation(mark, any_direct);
}

Result<Staging> LocalBackend::PrepareStaging() {
  if (staged_operations_++ % kProbeEvery == 0) HVL_RETURN_IF_ERROR(ChooseStores());
  return Staging{.rank = rank_,
                 .arenas = arenas_,
                 .board = board_,
                 .group_ends = group_ends_,
                 .geometry = MakeSlots(own_->layout().staging_bytes),
                 .hint = staging_hint_};
}

// All ranks have just met, so the time that another meeting takes is that of a word from one core
// to another. The shortest of some, because an interruption only adds. Each rank concludes for its
// own stores; the meetings are the same on all, as all count operations alike.
Status LocalBackend::ChooseStores() {
  auto shortest = Duration::max();
  for (int probe = 0; probe < kProbes; ++probe) {
    const auto start = std::chrono::steady_clock::now();
    HVL_RETURN_IF_ERROR(board_.Exchange(kProbeMark, 0));
    shortest = std::min<Duration>(shortest, std::chrono::steady_clock::now() - start);
  }
  staging_hint_ = shortest > kFarExchange ? StoreHint::kNonTemporal : StoreHint::kOrdinary;
  return Status::Ok();
}

Status LocalBackend::EndOperation(std::uint16_t mark, bool in_place) {
  if (!in_place && board_.lane() == Lane::kWorld) return Status::Ok();
  return board_.Exchange(EndMark(mark), 0);
}

Status LocalBackend::CheckShown(int rank, std::size_t bytes) const {
  const std::size_t shown = board_.Shown(rank).size();
  if (shown == bytes) return Status::Ok();
  return Status(StatusCode::kInternal,
                Format("rank {} shows {} bytes, expected {}", WorldRank(rank), shown, bytes),
                WorldRank(rank));
}

}  // namespace hvl::collective
