#include "csrc/collective/local_board.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <cstring>
#include <new>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "csrc/base/check.h"
#include "csrc/base/str.h"

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

// a >= b, where both count modulo 2^32 and are near each other.
bool Reached(std::uint32_t a, std::uint32_t b) { return static_cast<std::int32_t>(a - b) >= 0; }

std::size_t Index(int rank) { return static_cast<std::size_t>(rank); }

}  // namespace

std::size_t Board::WordsBytes(int ranks) {
  return RoundUp(sizeof(OwnerWords), alignof(PeerWords)) + Index(ranks) * sizeof(PeerWords);
}

void Board::Initialise(const Arena& own, int ranks) {
  new (own.words()) OwnerWords{};
  std::byte* const first = own.words() + RoundUp(sizeof(OwnerWords), alignof(PeerWords));
  for (int peer = 0; peer < ranks; ++peer) {
    auto* const words = new (first + Index(peer) * sizeof(PeerWords)) PeerWords{};
    for (PeerWords::Cell& cell : words->cells) cell.number = kFirstCount;
    words->turns = kFirstCount;
  }
}

Board::Board(int rank, std::vector<const Arena*> arenas, Duration spin)
    : rank_(rank), arenas_(std::move(arenas)), spin_(spin), shown_(arenas_.size()) {}

OwnerWords& Board::owner_words(int rank) const {
  return *std::launder(reinterpret_cast<OwnerWords*>(arenas_[Index(rank)]->words()));
}

PeerWords& Board::peer_words(int owner, int writer) const {
  std::byte* const first =
      arenas_[Index(owner)]->words() + RoundUp(sizeof(OwnerWords), alignof(PeerWords));
  return *std::launder(reinterpret_cast<PeerWords*>(first + Index(writer) * sizeof(PeerWords)));
}

std::byte* Board::Payload(std::size_t bytes) {
  HVL_CHECK(bytes <= kMaxPayloadBytes);
  return bytes <= kInlineBytes ? inline_payload_.data()
                               : arenas_[Index(rank_)]->payload(exchanges_ + 1);
}

Status Board::Exchange(std::uint16_t fingerprint, std::size_t bytes) {
  const std::byte* const payload = Payload(bytes);
  const std::uint32_t number = ++exchanges_;
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == rank_) continue;
    PeerWords::Cell& cell = peer_words(peer, rank_).cells[number % 2];
    cell.fingerprint = fingerprint;
    cell.payload_bytes = static_cast<std::uint16_t>(bytes);
    if (bytes <= kInlineBytes) std::memcpy(cell.payload.data(), payload, bytes);
    cell.number.store(number, std::memory_order_release);
  }
  wake_ups_settled_ = false;
  WakeSleepers();
  shown_[Index(rank_)] = {payload, bytes};
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == rank_) continue;
    const PeerWords::Cell& cell = peer_words(rank_, peer).cells[number % 2];
    HVL_RETURN_IF_ERROR(Await(
        {.peer = peer, .word = cell.number, .wanted = number, .most_behind = 2, .most_ahead = 0}));
    HVL_RETURN_IF_ERROR(ReadCell(peer, fingerprint));
  }
  SettleWakeUps();
  return Status::Ok();
}

Status Board::ReadCell(int peer, std::uint16_t fingerprint) {
  const PeerWords::Cell& cell = peer_words(rank_, peer).cells[exchanges_ % 2];
  const std::size_t bytes = cell.payload_bytes;
  if (cell.fingerprint != fingerprint || bytes > kMaxPayloadBytes) {
    return Status(StatusCode::kInternal,
                  Format("ranks {} and {} run different operations (exchange {}: marks {:#x} and "
                         "{:#x}); all ranks must run the same operations in the same order",
                         rank_, peer, exchanges_, fingerprint, cell.fingerprint),
                  peer);
  }
  shown_[Index(peer)] = {
      bytes <= kInlineBytes ? cell.payload.data() : arenas_[Index(peer)]->payload(exchanges_),
      bytes};
  return Status::Ok();
}

void Board::FinishTurn() {
  ++turns_;
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer != rank_) peer_words(peer, rank_).turns.store(turns_, std::memory_order_release);
  }
  // A turn is long, so the fence is paid at once instead of leaving a peer asleep during the next.
  wake_ups_settled_ = false;
  SettleWakeUps();
}

Status Board::AwaitTurns(std::uint32_t count) {
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == rank_) continue;
    HVL_RETURN_IF_ERROR(Await({.peer = peer,
                               .word = peer_words(rank_, peer).turns,
                               .wanted = count,
                               .most_behind = kMostTurnsApart,
                               .most_ahead = kMostTurnsApart}));
  }
  return Status::Ok();
}

Status Board::Await(const Wait& wait) {
  std::uint32_t value = wait.word.load(std::memory_order_acquire);
  if (!Reached(value, wait.wanted) && spin_ > Duration::zero()) {
    const auto start = std::chrono::steady_clock::now();
    auto now = start;
    do {
      if (now - start > kKeepCore) ::sched_yield();
      for (int spin = 0; spin < kSpinsPerClockRead; ++spin) {
        value = wait.word.load(std::memory_order_acquire);
        if (Reached(value, wait.wanted)) break;
        if (is_aborted_.load(std::memory_order_relaxed)) return aborted();
        Pause();
      }
      SettleWakeUps();
      now = std::chrono::steady_clock::now();
    } while (!Reached(value, wait.wanted) && now < start + spin_);
  }
  if (!Reached(value, wait.wanted)) return SleepFor(wait);
  if (value - wait.wanted > wait.most_ahead) return Implausible(wait, value);
  // An abort counts as soon as it is known, even if the peer has come that far.
  return is_aborted_.load(std::memory_order_relaxed) ? aborted() : Status::Ok();
}

Status Board::SleepFor(const Wait& wait) {
  SettleWakeUps();
  OwnerWords& own = owner_words(rank_);
  own.asleep_for.store(static_cast<std::uint32_t>(wait.peer) + 1, std::memory_order_relaxed);
  Status status;
  while (true) {
    // Against the fence in SettleWakeUps: either this load of the word sees the peer's store, or
    // the peer's load of asleep_for sees ours and rings after this load of the doorbell.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    const std::uint32_t bell = own.doorbell.load(std::memory_order_acquire);
    const std::uint32_t value = wait.word.load(std::memory_order_acquire);
    // Abort sets the flag before it rings.
    if (is_aborted_.load(std::memory_order_seq_cst)) {
      status = aborted();
      break;
    }
    if (Reached(value, wait.wanted)) {
      if (value - wait.wanted > wait.most_ahead) status = Implausible(wait, value);
      break;
    }
    if (wait.wanted - value > wait.most_behind) {
      status = Implausible(wait, value);
      break;
    }
    FutexWait(own.doorbell, bell);
  }
  own.asleep_for.store(0, std::memory_order_relaxed);
  return status;
}

void Board::WakeSleepers() {
  const auto this_rank = static_cast<std::uint32_t>(rank_) + 1;
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == rank_) continue;
    OwnerWords& words = owner_words(peer);
    if (words.asleep_for.load(std::memory_order_relaxed) != this_rank) continue;
    words.doorbell.fetch_add(1, std::memory_order_acq_rel);
    FutexWake(words.doorbell);
  }
}

void Board::SettleWakeUps() {
  if (wake_ups_settled_) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  WakeSleepers();
  wake_ups_settled_ = true;
}

Status Board::Implausible(const Wait& wait, std::uint32_t value) const {
  return Status(StatusCode::kInternal,
                Format("a shared word written by rank {} holds {} where {} was expected: its "
                       "process has overwritten memory that is not its own",
                       wait.peer, value, wait.wanted),
                wait.peer);
}

void Board::Abort(const Status& cause) {
  HVL_CHECK(!cause.ok(), "an abort needs a cause");
  {
    const MutexLock lock(mutex_);
    if (!cause_.ok()) return;
    cause_ = cause;
  }
  is_aborted_.store(true, std::memory_order_seq_cst);
  // The changed doorbell also keeps a thread awake that is just about to sleep.
  OwnerWords& own = owner_words(rank_);
  own.doorbell.fetch_add(1, std::memory_order_seq_cst);
  FutexWake(own.doorbell);
}

Status Board::aborted() const {
  const MutexLock lock(mutex_);
  return cause_;
}

}  // namespace hvl::collective
