// A page of memory in which a rank keeps what it does and how it ended, for who started it: hvlrun
// reads it when the rank is gone, however it went. The engine writes, the launcher reads.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "csrc/base/clock.h"

namespace hvl {

/// How far the session of a rank has come, or how it ended. The numbers are part of the layout.
enum class RankPhase : std::uint8_t {
  kNone = 0,        ///< no session has been here
  kJoining = 1,     ///< in init(); with a text: init() has failed
  kRunning = 2,     ///< the session lives
  kFinished = 3,    ///< it was shut down in order
  kLocalError = 4,  ///< it ended by an error of this rank
  kPeerLost = 5,    ///< it ended because another rank was lost
  kPeerLeft = 6,    ///< another rank has left that was still needed
};

/// What a batch of operations is called, for people.
struct OperationNote {
  std::string_view kind;          ///< "allreduce"
  std::string_view name;          ///< of the first operation
  std::uint32_t process_set = 0;  ///< 0 = all ranks
  std::uint32_t operations = 1;
  std::uint64_t bytes = 0;
  std::uint64_t sequence = 0;  ///< of the batch; 0 = it is in none yet
  std::uint32_t plan = 0;      ///< 0 = in no frozen plan
  std::uint64_t step = 0;      ///< of the plan, from 1
  std::uint32_t bucket = 0;    ///< of the step, from 1
  std::uint32_t buckets = 0;   ///< that a step has
  TimePoint since{};
};

/// The same as it was read.
struct OperationReport {
  std::string kind;  ///< "" = there is none
  std::string name;
  std::uint32_t process_set = 0;
  std::uint32_t operations = 0;
  std::uint64_t bytes = 0;
  std::uint64_t sequence = 0;
  std::uint32_t plan = 0;
  std::uint64_t step = 0;
  std::uint32_t bucket = 0;
  std::uint32_t buckets = 0;
  std::int64_t age_ns = -1;  ///< -1 = not known

  bool operator==(const OperationReport&) const = default;
};

/// What a page says. Every text is short and printable, whatever was in the page.
struct StatusReport {
  RankPhase phase = RankPhase::kNone;
  std::int32_t peer = -1;          ///< of kPeerLost and kPeerLeft
  std::string text;                ///< the error that ended the session
  std::int64_t phase_age_ns = -1;  ///< since the phase began
  std::int64_t beat_age_ns = -1;   ///< since the runtime last moved; -1 = never
  bool named_peer = false;         ///< an operation has failed by the fault of another rank
  /// Operations submitted and not finished; of a session that has ended, before that.
  std::uint64_t in_flight = 0;
  bool is_running = false;    ///< `started` has not ended yet
  bool at_gate = false;       ///< and waits for the other ranks to start it
  OperationReport submitted;  ///< the first of those that were announced last
  OperationReport started;    ///< the batch that was started last
  OperationReport completed;  ///< the batch that ended well last

  bool operator==(const StatusReport&) const = default;
};

namespace status_page {

/// The value that was written last, for one writer at a time, which may die at any moment, and any
/// readers: a write goes into the slot that is not the last one, between two changes of its stamp
/// (Boehm, "Can seqlocks get along with programming language memory models?", 2012). So the last
/// value stays readable while the next is being written. No call of the system, no wait; a
/// release store is an ordinary one on x86.
template <std::size_t kWords>
class LastValue {
 public:
  using Words = std::array<std::uint64_t, kWords>;

  /// At most kWords, what is not given keeps what stood there. `again` replaces the last value, and
  /// is not readable meanwhile.
  void Write(std::span<const std::uint64_t> words, bool again) {
    const std::uint64_t count = count_.load(std::memory_order_relaxed) + (again ? 0 : 1);
    Slot& slot = slots_[count % 2];
    const std::uint64_t stamp = slot.stamp.load(std::memory_order_relaxed) | 1;
    slot.stamp.store(stamp, std::memory_order_relaxed);
    for (std::size_t i = 0; i < words.size(); ++i) {
      slot.words[i].store(words[i], std::memory_order_release);
    }
    slot.stamp.store(stamp + 1, std::memory_order_release);
    count_.store(count, std::memory_order_release);
  }
  void Clear() { count_.store(0, std::memory_order_release); }

  /// How many values there have been.
  std::uint64_t count() const { return count_.load(std::memory_order_acquire); }
  /// The value of this number, if it is there: the last one, mostly the one before.
  std::optional<Words> Read(std::uint64_t number) const {
    if (number == 0) return std::nullopt;
    const Slot& slot = slots_[number % 2];
    Words words;
    for (int attempts = 0; attempts < kAttempts; ++attempts) {
      const std::uint64_t stamp = slot.stamp.load(std::memory_order_acquire);
      for (std::size_t i = 0; i < kWords; ++i) {
        words[i] = slot.words[i].load(std::memory_order_acquire);
      }
      const bool whole = stamp % 2 == 0 && slot.stamp.load(std::memory_order_relaxed) == stamp;
      if (whole) return words;
    }
    return std::nullopt;
  }

 private:
  // A write takes nanoseconds. A writer that has died or sleeps in one is not waited for.
  static constexpr int kAttempts = 64;

  struct Slot {
    std::atomic<std::uint64_t> stamp;  // odd while it is written
    std::array<std::atomic<std::uint64_t>, kWords> words;
  };
  std::atomic<std::uint64_t> count_;
  std::array<Slot, 2> slots_;
};

inline constexpr std::size_t kKindWords = 2, kNameWords = 10, kTextWords = 24;
inline constexpr std::size_t kOperationWords = 7 + kKindWords + kNameWords;
inline constexpr std::size_t kPhaseWords = 3 + kTextWords;

/// Zeros are a page that nobody has written.
struct Layout {
  std::atomic<std::uint64_t> magic;  ///< set by who makes the page
  std::atomic<std::uint64_t> owner;  ///< process that writes; 0 = none
  // Coordinator role; before the engine starts, the thread in init().
  alignas(64) std::atomic<std::uint64_t> beat_ns;
  std::atomic<std::uint64_t> taken;    ///< operations that it has taken
  std::atomic<std::uint64_t> dropped;  ///< and ended itself
  std::atomic<std::uint64_t> named_peer;
  LastValue<kPhaseWords> phase;
  LastValue<kOperationWords> submitted;
  // Executor role.
  alignas(64) std::atomic<std::uint64_t> completed;  ///< how many of `started` ended well
  std::atomic<std::uint64_t> running;                ///< 1 = the last of them is, 2 = at its gate
  std::atomic<std::uint64_t> finished;               ///< operations that ended
  LastValue<kOperationWords> started;
};

}  // namespace status_page

inline constexpr std::size_t kStatusPageBytes = 4096;
static_assert(sizeof(status_page::Layout) <= kStatusPageBytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// The seals of the memory file: neither side can take the page away from the other.
int StatusPageSeals();

/// Makes `memory`, kStatusPageBytes of zeros, a page for a rank.
void MakeStatusPage(void* memory);

/// What `memory`, such a page, says at `now`. Never fails: any content gives some report.
StatusReport ReadStatusPage(const void* memory, TimePoint now);

/// The writing end. Each function belongs to one role of the engine; none makes a call of the
/// system or waits.
class StatusPage {
 public:
  /// The page behind a descriptor that was inherited, for the next session of this process. Null
  /// when there is none: -1, something else than a page of this version, or one that another
  /// session or process that lives writes already. The descriptor is not inherited by programs that
  /// this process starts.
  static std::unique_ptr<StatusPage> Open(int fd);
  ~StatusPage();
  StatusPage(const StatusPage&) = delete;
  StatusPage& operator=(const StatusPage&) = delete;

  // Coordinator role; before the engine starts, the thread in init().

  /// The phases after kRunning are kept: the first cause counts.
  void SetPhase(RankPhase phase, int peer = -1, std::string_view text = {});
  void Beat(TimePoint now);
  /// `first` and others have been taken to be negotiated.
  void NoteSubmitted(const OperationNote& first, std::size_t count);
  /// An operation has failed by the fault of another rank, and the session lives on.
  void NoteNamedPeer();
  /// So many have ended without an end in the executor role.
  void NoteDropped(std::size_t count);

  // Executor role.

  /// A batch is about to run, behind its gate if it has one. The same batch may come again.
  void NoteStarted(const OperationNote& batch, bool at_gate);
  void NotePassedGate();
  /// It ended well; or it does not run any more.
  void NoteCompleted();
  void NoteWithdrawn();
  void NoteFinished(std::size_t operations);

 private:
  StatusPage(status_page::Layout* layout, std::uint64_t owner);

  status_page::Layout* const layout_;
  const std::uint64_t owner_;
  RankPhase phase_ = RankPhase::kJoining;
};

}  // namespace hvl
