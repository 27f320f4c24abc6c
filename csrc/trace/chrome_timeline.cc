#include <pthread.h>

#include <chrono>
#include <thread>

#include "csrc/base/mutex.h"
#include "csrc/base/str.h"
#include "csrc/trace/chrome_format.h"
#include "csrc/trace/event_queue.h"
#include "csrc/trace/json_file.h"
#include "csrc/trace/trace.h"

namespace hvl::trace {
namespace {

/// After the first event the writer lets others gather: so most events wake nobody, and a write
/// carries many. It is also what a crash can cost.
constexpr auto kGather = std::chrono::milliseconds(20);

std::int64_t EpochMicros(TimePoint at) {
  const auto wall = std::chrono::system_clock::now().time_since_epoch();
  const auto ago = std::chrono::steady_clock::now() - at;
  return std::chrono::duration_cast<std::chrono::microseconds>(wall - ago).count();
}

}  // namespace

/// Two buffers: threads fill one while the writer thread empties the other.
class ChromeTimeline::Writer {
 public:
  Writer(JsonArrayFile file, TimePoint origin)
      : file_(std::move(file)),
        formatter_(origin, kMaxTracks, [this](std::string_view element) { Write(element); }),
        thread_([this] { Run(); }) {}

  ~Writer() { static_cast<void>(Close()); }  // the error was for who called Close
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void Push(const Event& event) HVL_EXCLUDES(mutex_) {
    bool wake = false;
    {
      const MutexLock lock(mutex_);
      if (closing_) return;
      const bool was_empty = filling_.empty();
      const bool was_half_full = IsHalfFull();
      filling_.Push(event);
      wake = was_empty || (!was_half_full && IsHalfFull());
    }
    if (wake) changed_.notify_one();
  }

  Status Close() HVL_EXCLUDES(mutex_) {
    {
      const MutexLock lock(mutex_);
      closing_ = true;
    }
    changed_.notify_one();
    const MutexLock lock(join_mutex_);
    if (thread_.joinable()) thread_.join();
    return status_;
  }

 private:
  bool IsHalfFull() const HVL_REQUIRES(mutex_) { return filling_.bytes() >= kQueueBytes / 2; }

  /// Waits for events and swaps them into `draining_`. False when closed and nothing is left.
  bool NextBatch() HVL_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    while (!closing_ && filling_.empty()) changed_.wait(mutex_);
    const auto deadline = std::chrono::steady_clock::now() + kGather;
    while (!closing_ && !IsHalfFull()) {
      if (changed_.wait_until(mutex_, deadline) == std::cv_status::timeout) break;
    }
    std::swap(filling_, draining_);
    return !draining_.empty();
  }

  void Run() {
    ::pthread_setname_np(::pthread_self(), "hvl-trace");
    while (NextBatch()) {
      std::uint64_t dropped = draining_.dropped();
      draining_.ForEach([this, &dropped](const Event& event) {
        if (!formatter_.Add(event)) ++dropped;
      });
      if (dropped > 0) formatter_.AddDropped(dropped);
      if (status_.ok()) status_ = file_.Flush();
      draining_.Clear();
    }
    const Status closed = file_.Close();
    if (status_.ok()) status_ = closed;
  }

  void Write(std::string_view element) {
    if (status_.ok()) status_ = file_.Append(element);
  }

  Mutex mutex_;
  CondVar changed_;
  EventBuffer filling_ HVL_GUARDED_BY(mutex_){kQueueBytes};
  bool closing_ HVL_GUARDED_BY(mutex_) = false;

  // Of the writer thread; `status_` may be read once it has ended.
  EventBuffer draining_{kQueueBytes};
  JsonArrayFile file_;
  ChromeFormatter formatter_;
  Status status_;

  Mutex join_mutex_;
  std::thread thread_;  // last: it uses everything above
};

Result<std::unique_ptr<ChromeTimeline>> ChromeTimeline::Open(const std::string& path, int rank,
                                                             TimePoint origin) {
  HVL_ASSIGN_OR_RETURN(JsonArrayFile file,
                       JsonArrayFile::Create(path, ProcessZero(rank, EpochMicros(origin))));
  return std::unique_ptr<ChromeTimeline>(
      new ChromeTimeline(std::make_unique<Writer>(std::move(file), origin)));
}

ChromeTimeline::ChromeTimeline(std::unique_ptr<Writer> writer) : writer_(std::move(writer)) {}
ChromeTimeline::~ChromeTimeline() = default;

void ChromeTimeline::Begin(std::string_view tensor, std::string_view activity, TimePoint at) {
  writer_->Push({EventKind::kBegin, at, tensor, activity});
}

void ChromeTimeline::End(std::string_view tensor, TimePoint at) {
  writer_->Push({EventKind::kEnd, at, tensor, {}});
}

void ChromeTimeline::Instant(std::string_view tensor, std::string_view what, TimePoint at) {
  writer_->Push({EventKind::kInstant, at, tensor, what});
}

Status ChromeTimeline::Close() { return writer_->Close(); }

}  // namespace hvl::trace
