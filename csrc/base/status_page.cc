#include "csrc/base/status_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <new>

namespace hvl {
namespace {

using status_page::kKindWords;
using status_page::kNameWords;
using status_page::kOperationWords;
using status_page::kPhaseWords;
using status_page::kTextWords;
using status_page::Layout;
using Word = std::uint64_t;

// "hvlpage" and the version of the layout.
constexpr Word kMagic = 0x0168766c70616765;
constexpr Word kIsRunning = 1, kIsAtGate = 2;

void Add(std::atomic<Word>& counter, std::size_t count) {
  // One writer at a time, so no locked instruction.
  counter.store(counter.load(std::memory_order_relaxed) + count, std::memory_order_relaxed);
}

/// Text into words, cut to fit, with a zero behind it if there is room; returns how many it takes.
std::size_t PutText(std::string_view text, std::span<Word> words) {
  const std::size_t bytes = std::min(text.size(), words.size_bytes());
  const std::size_t used = std::min(bytes / sizeof(Word) + 1, words.size());
  words[used - 1] = 0;
  if (bytes > 0) std::memcpy(words.data(), text.data(), bytes);
  return used;
}

/// Up to the first zero; what a terminal could take for a command becomes '?'.
std::string GetText(std::span<const Word> words) {
  std::string text(words.size_bytes(), '\0');
  std::memcpy(text.data(), words.data(), text.size());
  text.resize(std::min(text.find('\0'), text.size()));
  std::replace_if(text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

Word Pack(std::uint32_t low, std::uint32_t high) { return Word{high} << 32 | low; }
std::uint32_t Low(Word word) { return static_cast<std::uint32_t>(word); }
std::uint32_t High(Word word) { return static_cast<std::uint32_t>(word >> 32); }

Word Nanoseconds(TimePoint time) { return static_cast<Word>(time.time_since_epoch().count()); }

/// -1 for a time that has not come yet, as a page may say whatever it likes; but who is alive may
/// have written after `now`.
std::int64_t AgeOf(Word time, TimePoint now) {
  constexpr Word kSecond = 1'000'000'000;
  const Word now_ns = Nanoseconds(now);
  if (time == 0 || time > now_ns + kSecond) return -1;
  return time > now_ns ? 0 : static_cast<std::int64_t>(now_ns - time);
}

constexpr std::size_t kKindAt = kOperationWords - kNameWords - kKindWords;
constexpr std::size_t kNameAt = kOperationWords - kNameWords;

/// The words of a note. Only as many as it needs: this is done for every batch.
class NoteWords {
 public:
  explicit NoteWords(const OperationNote& note) {
    words_[0] = Nanoseconds(note.since);
    words_[1] = note.sequence;
    words_[2] = note.bytes;
    words_[3] = note.step;
    words_[4] = Pack(note.process_set, note.operations);
    words_[5] = Pack(note.plan, note.bucket);
    words_[6] = note.buckets;
    const std::span<Word> all(words_);
    words_[kKindAt + 1] = 0;
    PutText(note.kind, all.subspan<kKindAt, kKindWords>());
    used_ = kNameAt + PutText(note.name, all.subspan<kNameAt, kNameWords>());
  }

  std::span<const Word> get() const { return std::span(words_).first(used_); }

 private:
  std::array<Word, kOperationWords> words_;
  std::size_t used_;
};

OperationReport ReportOf(const std::optional<std::array<Word, kOperationWords>>& words,
                         TimePoint now) {
  OperationReport report;
  if (!words) return report;
  report.age_ns = AgeOf((*words)[0], now);
  report.sequence = (*words)[1];
  report.bytes = (*words)[2];
  report.step = (*words)[3];
  report.process_set = Low((*words)[4]);
  report.operations = High((*words)[4]);
  report.plan = Low((*words)[5]);
  report.bucket = High((*words)[5]);
  report.buckets = Low((*words)[6]);
  report.kind = GetText(std::span(*words).subspan<kKindAt, kKindWords>());
  report.name = GetText(std::span(*words).subspan<kNameAt, kNameWords>());
  return report;
}

void ReadPhase(const Layout& layout, TimePoint now, StatusReport* report) {
  const auto words = layout.phase.Read(layout.phase.count());
  if (!words) return;
  const std::uint32_t phase = Low((*words)[0]);
  if (phase > static_cast<std::uint32_t>(RankPhase::kPeerLeft)) return;
  report->phase = static_cast<RankPhase>(phase);
  report->peer = static_cast<std::int32_t>(High((*words)[0]));
  report->phase_age_ns = AgeOf((*words)[1], now);
  report->in_flight = (*words)[2];
  report->text = GetText(std::span(*words).subspan<3, kTextWords>());
}

/// Operations that the session has and that have not ended.
Word InFlight(const Layout& layout) {
  // Ended before taken: what begins meanwhile must not look ended.
  const Word ended = layout.finished.load(std::memory_order_acquire) +
                     layout.dropped.load(std::memory_order_acquire);
  const Word taken = layout.taken.load(std::memory_order_acquire);
  return taken > ended ? taken - ended : 0;
}

/// Whether a process of this number may still write. Numbers of another PID namespace look dead;
/// then two may write, and some report comes out all the same.
bool Lives(Word pid) {
  const auto number = static_cast<pid_t>(pid);
  return number > 0 && (::kill(number, 0) == 0 || errno == EPERM);
}

/// Null when the descriptor is not that of a page.
void* MapPage(int fd) {
  struct stat facts{};
  if (fd < 0 || ::fstat(fd, &facts) != 0 || facts.st_size != static_cast<off_t>(kStatusPageBytes)) {
    return nullptr;
  }
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & StatusPageSeals()) != StatusPageSeals()) return nullptr;
  void* const memory = ::mmap(nullptr, kStatusPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

int StatusPageSeals() { return F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW; }

void MakeStatusPage(void* memory) {
  auto* const layout = new (memory) Layout;
  layout->magic.store(kMagic, std::memory_order_release);
}

StatusReport ReadStatusPage(const void* memory, TimePoint now) {
  const Layout& layout = *static_cast<const Layout*>(memory);
  StatusReport report;
  ReadPhase(layout, now, &report);
  report.beat_age_ns = AgeOf(layout.beat_ns.load(std::memory_order_relaxed), now);
  report.named_peer = layout.named_peer.load(std::memory_order_relaxed) != 0;
  if (report.phase <= RankPhase::kRunning) report.in_flight = InFlight(layout);
  report.submitted = ReportOf(layout.submitted.Read(layout.submitted.count()), now);
  const Word completed = layout.completed.load(std::memory_order_acquire);
  const Word running = layout.running.load(std::memory_order_acquire);
  const Word started = layout.started.count();
  report.is_running = running != 0 && completed < started;
  report.at_gate = report.is_running && running == kIsAtGate;
  report.started = ReportOf(layout.started.Read(started), now);
  // The slot of an older one has been written over.
  if (completed == started || completed + 1 == started) {
    report.completed = ReportOf(layout.started.Read(completed), now);
  }
  return report;
}

std::unique_ptr<StatusPage> StatusPage::Open(int fd) {
  void* const memory = MapPage(fd);
  if (memory == nullptr) return nullptr;
  auto* const layout = static_cast<Layout*>(memory);
  const auto own = static_cast<Word>(::getpid());
  Word owner = layout->owner.load();
  const bool is_free = layout->magic.load() == kMagic && (owner == 0 || !Lives(owner));
  if (!is_free || !layout->owner.compare_exchange_strong(owner, own)) {
    ::munmap(memory, kStatusPageBytes);
    return nullptr;
  }
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  return std::unique_ptr<StatusPage>(new StatusPage(layout, own));
}

StatusPage::StatusPage(Layout* layout, std::uint64_t owner) : layout_(layout), owner_(owner) {
  for (std::atomic<Word>* counter :
       {&layout_->beat_ns, &layout_->taken, &layout_->dropped, &layout_->named_peer,
        &layout_->running, &layout_->completed, &layout_->finished}) {
    counter->store(0, std::memory_order_relaxed);
  }
  layout_->submitted.Clear();
  layout_->started.Clear();
  SetPhase(RankPhase::kJoining);
  Beat(SteadyClock().Now());
}

StatusPage::~StatusPage() {
  // A forked child has this object too, and it is not the child's page.
  if (static_cast<Word>(::getpid()) == owner_) layout_->owner.store(0);
  ::munmap(layout_, kStatusPageBytes);
}

void StatusPage::SetPhase(RankPhase phase, int peer, std::string_view text) {
  if (phase_ > RankPhase::kRunning) return;
  phase_ = phase;
  std::array<Word, kPhaseWords> words;
  words[0] = Pack(static_cast<std::uint32_t>(phase), static_cast<std::uint32_t>(peer));
  words[1] = Nanoseconds(SteadyClock().Now());
  words[2] = InFlight(*layout_);  // the end of a session ends them all
  const std::size_t used = 3 + PutText(text, std::span(words).subspan<3, kTextWords>());
  layout_->phase.Write(std::span(words).first(used), false);
}

void StatusPage::Beat(TimePoint now) {
  layout_->beat_ns.store(Nanoseconds(now), std::memory_order_relaxed);
}

void StatusPage::NoteSubmitted(const OperationNote& first, std::size_t count) {
  layout_->submitted.Write(NoteWords(first).get(), false);
  Add(layout_->taken, count);
}

void StatusPage::NoteNamedPeer() { layout_->named_peer.store(1, std::memory_order_relaxed); }

void StatusPage::NoteDropped(std::size_t count) { Add(layout_->dropped, count); }

void StatusPage::NoteStarted(const OperationNote& batch, bool at_gate) {
  // One that was withdrawn leaves its place to the next, so that the last that ended well keeps
  // its.
  const bool again = layout_->completed.load(std::memory_order_relaxed) < layout_->started.count();
  layout_->started.Write(NoteWords(batch).get(), again);
  layout_->running.store(at_gate ? kIsAtGate : kIsRunning, std::memory_order_release);
}

void StatusPage::NotePassedGate() { layout_->running.store(kIsRunning, std::memory_order_release); }

void StatusPage::NoteCompleted() {
  layout_->completed.store(layout_->started.count(), std::memory_order_release);
  layout_->running.store(0, std::memory_order_release);
}

void StatusPage::NoteWithdrawn() { layout_->running.store(0, std::memory_order_release); }

void StatusPage::NoteFinished(std::size_t operations) { Add(layout_->finished, operations); }

}  // namespace hvl
