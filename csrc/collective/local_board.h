// How ranks of one host tell each other, through words in shared memory, how far they are.
//
// Two kinds of meetings:
//
// An *exchange* shows every rank a payload of every other one. Exchanges are numbered; all ranks
// take part in all of them. Rank q writes payload and number into a cell that only q writes and
// only p reads, for each p; p waits until each cell holds the number. There are two cells (and two
// areas for long payloads), used in turn: q can only write for exchange n+2 when it has seen p's
// n+1, and p sends n+1 only after it is done with the payloads of n.
//
// *Turns* are for pipelines: a count of finished turns per rank, without payload; a rank waits
// until the others have finished some earlier turn. Never reset.
//
// *Gates* come before operations that no coordinator has decided (docs/negotiation.md). A rank says
// to which gate it has come, and passes it when all ranks have come to it; until then it may be
// called back (Withdraw). What it has said stays: whoever calls back knows that some rank will
// never come to this gate, so that nobody passes it. Gates are numbered upwards, not always by one;
// a rank may go on to gates behind those that are withdrawn while a peer still stands at one of
// them, if that peer has been called back before.
//
// Process sets have boards of their own, which share a second set of words (Lane). A word is
// written by one rank and read by one, so exchanges and turns are counted in it per pair of ranks,
// over all sets that both are in: the two make those in the same order. Payloads and staging memory
// are read by all members of a set; so in this lane an operation ends with an exchange, after which
// nobody reads what the next operation, maybe of another set, writes. Operations of the world need
// no such end, because the ranks that might still read are those of the next operation.
//
// Waiting: spin on the word for a while, then announce "asleep for q", look again, and sleep on the
// own doorbell. After q has written, it looks whom it woke up for: a store, a fence, a load on both
// sides, so that one of them sees the other. The fence would cost q the time its store takes to
// reach memory; so it comes after q's own wait, or before q sleeps, when that store is long done.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/mutex.h"
#include "csrc/collective/backend.h"
#include "csrc/collective/local_arena.h"
#include "horovodlite/status.h"

namespace hvl::collective {

/// Shared by the processes: written by one peer, read by the owner of the arena.
struct alignas(2 * kLineBytes) PeerWords {
  struct alignas(kLineBytes) Cell {
    std::atomic<std::uint32_t> number;  ///< of the exchange whose payload is here; written last
    std::uint16_t fingerprint;          ///< of the operation; must be the same on all ranks
    std::uint16_t payload_bytes;
    std::array<std::byte, kLineBytes - 8> payload;  ///< or, if longer, in the sender's arena
  };
  std::array<Cell, 2> cells;
  alignas(kLineBytes) std::atomic<std::uint32_t> turns;
  /// A peer that has not been called back is at most one gate ahead, and has not used the mark
  /// again.
  struct alignas(kLineBytes) GateWords {
    std::atomic<std::uint64_t> number;                ///< to which the peer has come; written last
    std::array<std::atomic<std::uint32_t>, 2> marks;  ///< of the operations behind, used in turn
  };
  GateWords gate;
};
static_assert(sizeof(PeerWords) == 4 * kLineBytes);

/// Shared by the processes: the owner's sleep.
struct alignas(kLineBytes) OwnerWords {
  std::atomic<std::uint32_t> doorbell;    ///< futex; incremented by whoever wakes the owner
  std::atomic<std::uint32_t> asleep_for;  ///< 1 + the rank it waits for, 0 = awake
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

/// One rank's end. One thread at a time, except Abort.
class Board {
 public:
  static constexpr std::size_t kInlineBytes = sizeof(PeerWords::Cell::payload);
  /// Shortly before the counts wrap around, so that every run comes past that.
  static constexpr std::uint32_t kFirstCount = ~std::uint32_t{0} - 99;
  static std::size_t WordsBytes(int ranks);  ///< for a world of `ranks`
  /// Prepares the words of this rank's own arena, before peers see it.
  static void Initialise(const Arena& own, int ranks);

  /// `arenas` by rank, all mapped; they must outlive the board. `spin` 0 = sleep at once.
  /// `first_rank`: the number in the world of the first of these ranks, which follow each other.
  Board(int rank, const std::vector<const Arena*>& arenas, Duration spin, int first_rank = 0);
  /// A board of a process set: of the ranks at `places` of `parent`, whose aborts it shares.
  Board(const Board& parent, std::span<const int> places);
  ~Board() = default;
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  /// Where to put this rank's payload of the next exchange: `bytes` <= kMaxPayloadBytes.
  std::byte* Payload(std::size_t bytes);
  /// Shows the payload, waits for everybody's. Returns what Abort said, or Internal if a peer's
  /// words make no sense.
  Status Exchange(std::uint16_t fingerprint, std::size_t bytes);
  /// What the rank at place `rank` has shown in the last exchange; valid until the next one.
  std::span<const std::byte> Shown(int rank) const {
    return shown_[static_cast<std::size_t>(rank)];
  }

  const std::vector<int>& world_ranks() const { return world_ranks_; }
  Lane lane() const { return lane_; }

  /// Turns that this rank has finished.
  std::uint32_t turns() const { return turns_; }
  void FinishTurn();
  /// Waits until every peer has finished `count` turns (modulo 2^32, near this rank's own count).
  Status AwaitTurns(std::uint32_t count);

  /// See Backend::Gate.
  Result<GateResult> PassGate(std::uint64_t number, std::uint32_t mark, bool may_sleep);
  /// Any thread; never blocks. Gates from `first` to `last` are not passed any more. Each call is
  /// for higher numbers than those before.
  void Withdraw(std::uint64_t first, std::uint64_t last);

  /// Any thread; never blocks. Every wait, now and later, returns `cause`; the first call counts.
  void Abort(const Status& cause);
  /// OK until Abort.
  Status aborted() const;

 private:
  /// Exchanges and turns with one peer in one lane.
  struct PairCounts {
    std::uint32_t exchanges = kFirstCount;
    std::uint32_t turns = kFirstCount;
  };
  /// What the boards of one rank share.
  struct Shared {
    Shared(int own_rank, std::vector<const Arena*> all, Duration spin_time, int first);

    // Fixed.
    const int rank;                          // of the world
    const int first_rank;                    // of this host
    const std::vector<const Arena*> arenas;  // by rank on this host
    const Duration spin;

    // Owned by the calling thread.
    std::array<std::vector<PairCounts>, kLanes> counts;

    // Self-synchronised.
    std::atomic<std::uint64_t> first_withdrawn{1}, last_withdrawn{0};  ///< gates; none at first
    std::atomic<bool> is_aborted{false};
    mutable Mutex mutex;
    Status cause HVL_GUARDED_BY(mutex);
  };
  struct Peer {
    int rank;           ///< of the world
    std::size_t place;  ///< among the ranks of this board
    const Arena* arena;
    OwnerWords* sleep;
    PeerWords* outgoing;  ///< in its arena, written by this rank
    PeerWords* incoming;  ///< in this rank's arena, written by the peer
    PairCounts* counts;
  };
  /// What a look at a peer's word can show. kThere: no need to wait any longer.
  enum class Sight { kNotYet, kThere, kRubbish };

  Board(std::shared_ptr<Shared> shared, Lane lane, std::vector<int> world_ranks);
  Status ReadCell(const Peer& peer, std::uint16_t fingerprint);
  bool Withdrawn(std::uint64_t number) const;
  Status CheckGateMark(const Peer& peer, std::uint64_t number, std::uint32_t mark) const;
  /// Waits until `look()` does not say kNotYet. Timeout when that needs sleep and it may not.
  template <typename Look>
  Status Await(int peer, const Look& look, bool may_sleep = true);
  template <typename Look>
  Status SleepFor(int peer, const Look& look);
  /// Keeps this thread awake if it is just about to sleep, wakes it if it sleeps.
  void RingOwnBell();
  /// Wakes the peers that sleep until this rank has written what it has now written.
  void WakeSleepers();
  void SettleWakeUps();
  Status Rubbish(int peer) const;
  const Arena& own_arena() const { return *shared_->arenas[IndexOnHost(rank())]; }
  std::size_t IndexOnHost(int world_rank) const {
    return static_cast<std::size_t>(world_rank - shared_->first_rank);
  }
  int rank() const { return shared_->rank; }  ///< of the world

  // Fixed.
  const std::shared_ptr<Shared> shared_;  // by the boards of this rank
  const Lane lane_;
  const std::vector<int> world_ranks_;  ///< of the members, this one included
  const std::uint16_t tag_;             ///< 0 for the world
  std::vector<Peer> peers_;             ///< all members but this one

  // Owned by the calling thread.
  std::size_t own_place_ = 0;
  std::uint32_t exchanges_ = kFirstCount;  ///< of this board, alike on all members
  std::uint32_t turns_ = kFirstCount;
  bool wake_ups_settled_ = true;  ///< every peer that slept for this rank's last words was woken
  std::array<std::byte, kInlineBytes> inline_payload_{};
  std::vector<std::span<const std::byte>> shown_;
};

}  // namespace hvl::collective
