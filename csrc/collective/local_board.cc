#include "csrc/collective/local_board.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <cstring>
#include <new>
#include <numeric>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "csrc/collective/part.h"

namespace hvl::collective {
namespace {

// Ranks are at most a few turns apart; anything further is rubbish.
constexpr std::uint32_t kMostTurnsApart = 64;
// Between two looks at the clock: about a microsecond.
constexpr int kSpinsPerClockRead = 32;

// How long a waiting rank holds on to its core: as long as a peer on another core takes to answer.
// Then it offers the core at every look at the clock, because the peer may be waiting for this one.
constexpr std::chrono::microseconds kKeepCore{5};

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// The word lies in memory that other processes map, hence no FUTEX_PRIVATE_FLAG. Returns for no
// reason now and then.
void FutexWait(std::atomic<std::uint32_t>& word, std::uint32_t expected) {
  ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, nullptr, nullptr, 0);
}
void FutexWake(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Whether a >= b, where both count modulo 2^32 and are near each other.
bool Reached(std::uint32_t a, std::uint32_t b) { return static_cast<std::int32_t>(a - b) >= 0; }

std::size_t Index(int rank) { return static_cast<std::size_t>(rank); }

std::vector<int> RanksFrom(int first, std::size_t count) {
  std::vector<int> ranks(count);
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

OwnerWords& OwnerWordsOf(const Arena& arena) {
  return *std::launder(reinterpret_cast<OwnerWords*>(arena.words()));
}

// The words of a lane that rank `writer` of `ranks` writes in an arena.
PeerWords& PeerWordsOf(const Arena& arena, Lane lane, std::size_t writer, std::size_t ranks) {
  std::byte* const first = arena.words() + RoundUp(sizeof(OwnerWords), alignof(PeerWords));
  const std::size_t index = static_cast<std::size_t>(lane) * ranks + writer;
  return *std::launder(reinterpret_cast<PeerWords*>(first + index * sizeof(PeerWords)));
}

}  // namespace

std::size_t Board::WordsBytes(int ranks) {
  return RoundUp(sizeof(OwnerWords), alignof(PeerWords)) +
         kLanes * Index(ranks) * sizeof(PeerWords);
}

void Board::Initialise(const Arena& own, int ranks) {
  new (own.words()) OwnerWords{};
  std::byte* const first = own.words() + RoundUp(sizeof(OwnerWords), alignof(PeerWords));
  for (std::size_t index = 0; index < kLanes * Index(ranks); ++index) {
    auto* const words = new (first + index * sizeof(PeerWords)) PeerWords{};
    for (PeerWords::Cell& cell : words->cells) cell.number = kFirstCount;
    words->turns = kFirstCount;
    words->gate.number = 0;
  }
}

Board::Shared::Shared(int own_rank, std::vector<const Arena*> all, Duration spin_time, int first)
    : rank(own_rank), first_rank(first), arenas(std::move(all)), spin(spin_time) {
  counts.fill(std::vector<PairCounts>(arenas.size()));
}

Board::Board(int rank, const std::vector<const Arena*>& arenas, Duration spin, int first_rank)
    : Board(std::make_shared<Shared>(first_rank + rank, arenas, spin, first_rank), Lane::kWorld,
            RanksFrom(first_rank, arenas.size())) {}

Board::Board(const Board& parent, std::span<const int> places)
    : Board(parent.shared_, Lane::kSets, WorldRanks(places, parent.world_ranks_)) {}

Board::Board(std::shared_ptr<Shared> shared, Lane lane, std::vector<int> world_ranks)
    : shared_(std::move(shared)),
      lane_(lane),
      world_ranks_(std::move(world_ranks)),
      tag_(lane == Lane::kWorld ? std::uint16_t{0} : PartTag(world_ranks_)),
      shown_(world_ranks_.size()) {
  for (std::size_t place = 0; place < world_ranks_.size(); ++place) {
    const int peer = world_ranks_[place];
    if (peer == rank()) {
      own_place_ = place;
      continue;
    }
    const Arena& arena = *shared_->arenas[IndexOnHost(peer)];
    const auto ranks = shared_->arenas.size();
    peers_.push_back(
        {.rank = peer,
         .place = place,
         .arena = &arena,
         .sleep = &OwnerWordsOf(arena),
         .outgoing = &PeerWordsOf(arena, lane, IndexOnHost(rank()), ranks),
         .incoming = &PeerWordsOf(own_arena(), lane, IndexOnHost(peer), ranks),
         .counts = &shared_->counts[static_cast<std::size_t>(lane)][IndexOnHost(peer)]});
  }
}

std::byte* Board::Payload(std::size_t bytes) {
  HVL_CHECK(bytes <= kMaxPayloadBytes);
  return bytes <= kInlineBytes ? inline_payload_.data()
                               : own_arena().payload(lane_, exchanges_ + 1);
}

Status Board::Exchange(std::uint16_t fingerprint, std::size_t bytes) {
  const std::byte* const payload = Payload(bytes);
  const auto tagged = static_cast<std::uint16_t>(fingerprint ^ tag_);
  ++exchanges_;
  for (const Peer& peer : peers_) {
    const std::uint32_t number = ++peer.counts->exchanges;
    PeerWords::Cell& cell = peer.outgoing->cells[number % 2];
    cell.fingerprint = tagged;
    cell.payload_bytes = static_cast<std::uint16_t>(bytes);
    if (bytes <= kInlineBytes) std::memcpy(cell.payload.data(), payload, bytes);
    cell.number.store(number, std::memory_order_release);
  }
  wake_ups_settled_ = false;
  WakeSleepers();
  shown_[own_place_] = {payload, bytes};
  for (const Peer& peer : peers_) {
    const std::uint32_t number = peer.counts->exchanges;
    const std::atomic<std::uint32_t>& word = peer.incoming->cells[number % 2].number;
    HVL_RETURN_IF_ERROR(Await(peer.rank, [&word, number] {
      const std::uint32_t behind = number - word.load(std::memory_order_acquire);
      if (behind == 0) return Sight::kThere;
      return behind <= 2 ? Sight::kNotYet : Sight::kRubbish;
    }));
    HVL_RETURN_IF_ERROR(ReadCell(peer, tagged));
  }
  SettleWakeUps();
  return Status::Ok();
}

Status Board::ReadCell(const Peer& peer, std::uint16_t fingerprint) {
  const PeerWords::Cell& cell = peer.incoming->cells[peer.counts->exchanges % 2];
  const std::size_t bytes = cell.payload_bytes;
  if (cell.fingerprint != fingerprint || bytes > kMaxPayloadBytes) {
    return Status(StatusCode::kInternal,
                  Format("ranks {} and {} run different operations (exchange {}: marks {:#x} and "
                         "{:#x}); all ranks must run the same operations in the same order",
                         rank(), peer.rank, exchanges_, fingerprint, cell.fingerprint),
                  peer.rank);
  }
  shown_[peer.place] = {
      bytes <= kInlineBytes ? cell.payload.data() : peer.arena->payload(lane_, exchanges_), bytes};
  return Status::Ok();
}

void Board::FinishTurn() {
  ++turns_;
  for (const Peer& peer : peers_) {
    peer.outgoing->turns.store(++peer.counts->turns, std::memory_order_release);
  }
  // A turn is long, so the fence is paid at once instead of leaving a peer asleep during the next.
  wake_ups_settled_ = false;
  SettleWakeUps();
}

Status Board::AwaitTurns(std::uint32_t count) {
  const std::uint32_t ahead = count - turns_;  // modulo 2^32
  for (const Peer& peer : peers_) {
    const std::atomic<std::uint32_t>& word = peer.incoming->turns;
    HVL_RETURN_IF_ERROR(Await(peer.rank, [&word, wanted = peer.counts->turns + ahead] {
      const std::uint32_t value = word.load(std::memory_order_acquire);
      const bool there = Reached(value, wanted);
      if ((there ? value - wanted : wanted - value) > kMostTurnsApart) return Sight::kRubbish;
      return there ? Sight::kThere : Sight::kNotYet;
    }));
  }
  return Status::Ok();
}

Result<GateResult> Board::PassGate(std::uint64_t number, std::uint32_t mark, bool may_sleep) {
  if (Withdrawn(number)) return GateResult::kWithdrawn;
  for (const Peer& peer : peers_) {
    PeerWords::GateWords& gate = peer.outgoing->gate;
    gate.marks[number % 2].store(mark, std::memory_order_relaxed);
    gate.number.store(number, std::memory_order_release);
  }
  wake_ups_settled_ = false;
  WakeSleepers();
  for (const Peer& peer : peers_) {
    const std::atomic<std::uint64_t>& word = peer.incoming->gate.number;
    const auto look = [&] {
      const bool came = word.load(std::memory_order_acquire) >= number;
      return came || Withdrawn(number) ? Sight::kThere : Sight::kNotYet;
    };
    const Status met = Await(peer.rank, look, may_sleep);
    // Also when the peer has come that far: it may have been called back and be at a later gate.
    // And after an abort: who has called back counts on it.
    if (Withdrawn(number)) {
      SettleWakeUps();
      return GateResult::kWithdrawn;
    }
    if (met.code() == StatusCode::kTimeout) return GateResult::kNotYet;
    HVL_RETURN_IF_ERROR(met);
    HVL_RETURN_IF_ERROR(CheckGateMark(peer, number, mark));
  }
  SettleWakeUps();
  return GateResult::kPassed;
}

bool Board::Withdrawn(std::uint64_t number) const {
  return number <= shared_->last_withdrawn.load(std::memory_order_acquire) &&
         number >= shared_->first_withdrawn.load(std::memory_order_relaxed);
}

Status Board::CheckGateMark(const Peer& peer, std::uint64_t number, std::uint32_t mark) const {
  const std::uint32_t shown = peer.incoming->gate.marks[number % 2].load(std::memory_order_relaxed);
  if (shown == mark) return Status::Ok();
  return Status(StatusCode::kInternal,
                Format("ranks {} and {} are about to run different operations of the frozen plan "
                       "(gate {}: marks {:#x} and {:#x})",
                       rank(), peer.rank, number, mark, shown),
                peer.rank);
}

void Board::Withdraw(std::uint64_t first, std::uint64_t last) {
  // In this order: who sees the new `last` sees the new `first`.
  shared_->first_withdrawn.store(first, std::memory_order_relaxed);
  shared_->last_withdrawn.store(last, std::memory_order_seq_cst);
  RingOwnBell();
}

template <typename Look>
Status Board::Await(int peer, const Look& look, bool may_sleep) {
  Sight sight = look();
  if (sight == Sight::kNotYet && shared_->spin > Duration::zero()) {
    const auto start = std::chrono::steady_clock::now();
    auto now = start;
    do {
      if (now - start > kKeepCore) ::sched_yield();
      for (int spin = 0; spin < kSpinsPerClockRead; ++spin) {
        sight = look();
        if (sight != Sight::kNotYet) break;
        if (shared_->is_aborted.load(std::memory_order_relaxed)) return aborted();
        Pause();
      }
      SettleWakeUps();
      now = std::chrono::steady_clock::now();
    } while (sight == Sight::kNotYet && now < start + shared_->spin);
  }
  if (sight == Sight::kNotYet && !may_sleep) {
    SettleWakeUps();
    const bool ends = shared_->is_aborted.load(std::memory_order_relaxed);
    return ends ? aborted() : Status(StatusCode::kTimeout, "the spin has ended");
  }
  if (sight == Sight::kNotYet) return SleepFor(peer, look);
  if (sight == Sight::kRubbish) return Rubbish(peer);
  // An abort counts as soon as it is known, even if the peer has come that far.
  return shared_->is_aborted.load(std::memory_order_relaxed) ? aborted() : Status::Ok();
}

template <typename Look>
Status Board::SleepFor(int peer, const Look& look) {
  SettleWakeUps();
  OwnerWords& own = OwnerWordsOf(own_arena());
  own.asleep_for.store(static_cast<std::uint32_t>(peer) + 1, std::memory_order_relaxed);
  Status status;
  while (true) {
    // Against the fence in SettleWakeUps: either this look at the word sees the peer's store, or
    // the peer's load of asleep_for sees ours and rings after this load of the doorbell.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const std::uint32_t bell = own.doorbell.load(std::memory_order_acquire);
    const Sight sight = look();
    // Abort sets the flag before it rings.
    if (shared_->is_aborted.load(std::memory_order_seq_cst)) {
      status = aborted();
      break;
    }
    if (sight == Sight::kRubbish) status = Rubbish(peer);
    if (sight != Sight::kNotYet) break;
    FutexWait(own.doorbell, bell);
  }
  own.asleep_for.store(0, std::memory_order_relaxed);
  return status;
}

void Board::WakeSleepers() {
  const auto this_rank = static_cast<std::uint32_t>(rank()) + 1;
  for (const Peer& peer : peers_) {
    if (peer.sleep->asleep_for.load(std::memory_order_relaxed) != this_rank) continue;
    peer.sleep->doorbell.fetch_add(1, std::memory_order_acq_rel);
    FutexWake(peer.sleep->doorbell);
  }
}

void Board::SettleWakeUps() {
  if (wake_ups_settled_) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  WakeSleepers();
  wake_ups_settled_ = true;
}

Status Board::Rubbish(int peer) const {
  return Status(StatusCode::kInternal,
                Format("a shared word written by rank {} holds a value that makes no sense: its "
                       "process has overwritten memory that is not its own",
                       peer),
                peer);
}

void Board::Abort(const Status& cause) {
  HVL_CHECK(!cause.ok(), "an abort needs a cause");
  {
    const MutexLock lock(shared_->mutex);
    if (!shared_->cause.ok()) return;
    shared_->cause = cause;
  }
  shared_->is_aborted.store(true, std::memory_order_seq_cst);
  RingOwnBell();
}

void Board::RingOwnBell() {
  OwnerWords& own = OwnerWordsOf(own_arena());
  own.doorbell.fetch_add(1, std::memory_order_seq_cst);
  FutexWake(own.doorbell);
}

Status Board::aborted() const {
  const MutexLock lock(shared_->mutex);
  return shared_->cause;
}

}  // namespace hvl::collective
