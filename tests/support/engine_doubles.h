// The engine's neighbours as doubles: links, planner and data plane that do what a test tells them.
// All are thread-safe, because the engine calls them from whichever thread has the role.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/collective/backend.h"
#include "csrc/net/mesh.h"
#include "csrc/plan/planner.h"
#include "csrc/trace/trace.h"
#include "tests/support/ranks.h"

namespace hvl::test {

/// Links of one rank to peers that exist only in the test.
class FakeMesh final : public net::Mesh {
 public:
  /// Shared by the mesh and the test, which outlives it.
  struct Control {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void(net::MeshReceiver&)>> events;
    bool wake = false;
    int sleeps = 0, polls = 0, wakes = 0;
    std::vector<std::pair<int, std::string>> sent;
    bool closed = false;

    /// Something arrives from a peer.
    void Deliver(std::function<void(net::MeshReceiver&)> event) {
      const std::lock_guard lock(mutex);
      events.push_back(std::move(event));
      changed.notify_all();
    }
    void DeliverFrame(int peer) {
      Deliver([peer](net::MeshReceiver& receiver) { receiver.OnFrame(peer, {}); });
    }
    void LosePeer(int peer, const std::string& how) {
      Deliver([peer, how](net::MeshReceiver& receiver) {
        receiver.OnPeerLost(peer, Status(StatusCode::kUnavailable, how, peer));
      });
    }
    /// Until `predicate` holds (with the mutex); false when that takes longer than kHangLimit.
    template <typename Predicate>
    bool Await(const Predicate& predicate) {
      std::unique_lock lock(mutex);
      return changed.wait_for(lock, kHangLimit, predicate);
    }
  };

  FakeMesh(int rank, int size, std::shared_ptr<Control> control)
      : rank_(rank), size_(size), control_(std::move(control)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::uint64_t generation() const override { return 1; }
  const std::vector<std::string>& blobs() const override { return blobs_; }
  const std::vector<int>& hosts() const override { return hosts_; }
  Result<std::vector<net::UniqueFd>> ExchangeFds(int) override { return Unsupported(); }
  std::unique_ptr<net::DataLinks> TakeDataLinks() override { return nullptr; }

  void Send(int peer, std::span<const std::byte> frame) override {
    const std::lock_guard lock(control_->mutex);
    control_->sent.emplace_back(
        peer, std::string(reinterpret_cast<const char*>(frame.data()), frame.size()));
    control_->changed.notify_all();
  }
  bool Poll(Duration, net::MeshReceiver& receiver) override {
    std::deque<std::function<void(net::MeshReceiver&)>> events;
    {
      const std::lock_guard lock(control_->mutex);
      events.swap(control_->events);
      ++control_->polls;
      control_->changed.notify_all();
    }
    for (const auto& event : events) event(receiver);
    return !events.empty();
  }
  void Sleep(Duration timeout) override {
    std::unique_lock lock(control_->mutex);
    ++control_->sleeps;
    control_->changed.notify_all();
    const auto ready = [this] { return control_->wake || !control_->events.empty(); };
    if (timeout > kHangLimit) {
      control_->changed.wait(lock, ready);
    } else {
      control_->changed.wait_for(lock, timeout, ready);
    }
    control_->wake = false;
  }
  void Wake() override {
    const std::lock_guard lock(control_->mutex);
    control_->wake = true;
    ++control_->wakes;
    control_->changed.notify_all();
  }
  void FinishSending() override {}
  void Close() override {
    const std::lock_guard lock(control_->mutex);
    control_->closed = true;
  }

 private:
  static Status Unsupported() { return {StatusCode::kNotSupported, "a mesh without sockets"}; }

  const int rank_, size_;
  const std::vector<std::string> blobs_;
  const std::vector<int> hosts_ = std::vector<int>(static_cast<std::size_t>(size_));
  const std::shared_ptr<Control> control_;  // shared with the test
};

/// Dispatches every operation at once, alone, unless told otherwise.
class FakePlanner final : public plan::Planner {
 public:
  struct Control {
    std::mutex mutex;
    std::condition_variable changed;
    /// What to do with a submission; empty = one batch with all its parts.
    std::function<void(const plan::Submission&, plan::Effects&)> on_submit;
    /// What to do with a frame.
    std::function<void(plan::Effects&)> on_receive;
    std::function<void(TimePoint, plan::Effects&)> on_tick;
    std::optional<TimePoint> deadline;
    Duration failure_grace{};  ///< how long a failure of the data plane waits for its root cause
    bool gathering = false;
    std::size_t needed = 1;
    std::uint64_t next_sequence = 1;
    std::vector<plan::Submission> submissions;
    std::vector<std::uint64_t> finished;
    std::vector<plan::Waiter> waiters;
    std::optional<Status> farewell;
    /// One letter per call: s(ubmit) f(lush) r(eceive) b(atch finished)
    /// d(ata plane failed) l(ost) t(ick) e(nd).
    std::string log;

    template <typename Predicate>
    bool Await(const Predicate& predicate) {
      std::unique_lock lock(mutex);
      return changed.wait_for(lock, kHangLimit, predicate);
    }
    /// A batch with tensors [first, first + count) of one submission. Call with the mutex held or
    /// from on_submit.
    plan::Batch MakeBatch(const plan::Submission& submission, std::uint32_t first,
                          std::uint32_t count, int size = 1) {
      plan::Batch batch;
      batch.sequence = next_sequence++;
      batch.spec = plan::SpecOf(*submission.signature);
      const auto& tensors = submission.signature->tensors;
      if (!tensors.empty()) batch.dtype = tensors[first].dtype;
      plan::BatchEntry entry{submission.ticket, first, count, {}};
      if (batch.spec.kind == OpKind::kAlltoall) {  // as if every rank sent as this one does
        for (int rank = 0; rank < size; ++rank) {
          entry.first_dims.insert(entry.first_dims.end(), submission.first_dims.begin(),
                                  submission.first_dims.end());
        }
      } else if (!submission.first_dims.empty()) {
        for (std::uint32_t i = first; i < first + count; ++i) {
          entry.first_dims.insert(entry.first_dims.end(), static_cast<std::size_t>(size),
                                  submission.first_dims[i]);
        }
      }
      batch.entries.push_back(std::move(entry));
      return batch;
    }
  };

  explicit FakePlanner(std::shared_ptr<Control> control) : control_(std::move(control)) {}

  void Submit(plan::Submission&& submission, TimePoint, plan::Effects& effects) override {
    const auto lock = Note('s');
    control_->submissions.push_back(submission);
    if (control_->on_submit) return control_->on_submit(submission, effects);
    const auto parts = std::max<std::size_t>(1, submission.signature->tensors.size());
    effects.run.push_back(control_->MakeBatch(submission, 0, static_cast<std::uint32_t>(parts)));
  }
  void Flush(TimePoint, plan::Effects&) override { const auto lock = Note('f'); }
  void Receive(int, std::span<const std::byte>, TimePoint, plan::Effects& effects) override {
    const auto lock = Note('r');
    if (control_->on_receive) control_->on_receive(effects);
  }
  void BatchFinished(std::uint64_t sequence, TimePoint, plan::Effects&) override {
    const auto lock = Note('b');
    control_->finished.push_back(sequence);
  }
  void DataPlaneFailed(const Status& cause, TimePoint now, plan::Effects& effects) override {
    const auto lock = Note('d');
    if (control_->failure_grace == Duration::zero()) {
      effects.fatal = cause;
      return;
    }
    control_->deadline = now + control_->failure_grace;
    control_->on_tick = [cause](TimePoint, plan::Effects& late) { late.fatal = cause; };
  }
  void PeerLost(int, const Status& cause, TimePoint, plan::Effects& effects) override {
    const auto lock = Note('l');
    effects.fatal = cause;
  }
  void Leave(const Status& cause, TimePoint, plan::Effects& effects) override {
    const auto lock = Note('e');
    control_->farewell = cause;
    effects.send.push_back({1, {std::byte{'b'}, std::byte{'y'}, std::byte{'e'}}});
  }
  void Tick(TimePoint now, plan::Effects& effects) override {
    const auto lock = Note('t');
    control_->deadline.reset();
    if (control_->on_tick) control_->on_tick(now, effects);
  }
  std::optional<TimePoint> next_deadline() const override {
    const std::lock_guard lock(control_->mutex);
    return control_->deadline;
  }
  std::size_t needed_submissions() const override {
    const std::lock_guard lock(control_->mutex);
    return control_->needed;
  }
  bool gathering() const override {
    const std::lock_guard lock(control_->mutex);
    return control_->gathering;
  }
  std::size_t remembered_names() const override { return 0; }
  void SetTracing(bool) override {}
  void Awaited(ProcessSetId, std::string_view, plan::Waiter waiter, TimePoint) override {
    const std::lock_guard lock(control_->mutex);
    control_->waiters.push_back(waiter);
    control_->changed.notify_all();
  }
  const plan::PlanCounters& plan_counters() const override { return plan_counters_; }

 private:
  std::unique_lock<std::mutex> Note(char call) {
    std::unique_lock lock(control_->mutex);
    control_->log += call;
    control_->changed.notify_all();
    return lock;
  }

  const std::shared_ptr<Control> control_;  // shared with the test
  const plan::PlanCounters plan_counters_{};
};

/// Copies input to output; may be told to block or to fail.
class FakeBackend final : public collective::Backend {
 public:
  struct Control {
    std::mutex mutex;
    std::condition_variable changed;
    bool blocked = false;  ///< calls wait until this is false again, or until Abort
    Status fails;          ///< calls return this
    int running = 0, calls = 0;
    std::vector<std::size_t> piece_counts;
    std::vector<std::thread::id> threads;        ///< of each call
    std::vector<std::vector<int>> ranks;         ///< of the part that was called, empty = the world
    std::vector<tensor::ReduceSpec> specs;       ///< of each reduction
    std::vector<int> roots;                      ///< of each broadcast
    std::vector<std::vector<std::byte>> inputs;  ///< of each piece of an allreduce
    int parts_alive = 0;
    std::optional<Status> aborted;

    void Block(bool on) {
      const std::lock_guard lock(mutex);
      blocked = on;
      changed.notify_all();
    }
    template <typename Predicate>
    bool Await(const Predicate& predicate) {
      std::unique_lock lock(mutex);
      return changed.wait_for(lock, kHangLimit, predicate);
    }
  };

  explicit FakeBackend(std::shared_ptr<Control> control, std::vector<int> ranks = {})
      : control_(std::move(control)), ranks_(std::move(ranks)) {
    CountPart(1);
  }
  ~FakeBackend() override { CountPart(-1); }

  std::string_view name() const override { return "fake"; }
  Status Allreduce(std::span<const collective::ReducePiece> pieces,
                   const tensor::ReduceSpec& spec) override {
    HVL_RETURN_IF_ERROR(Call(pieces.size()));
    Note([&] { control_->specs.push_back(spec); });
    for (const auto& piece : pieces) {
      const std::size_t bytes =
          static_cast<std::size_t>(piece.element_count) * DTypeBytes(spec.dtype);
      const auto* input = static_cast<const std::byte*>(piece.input);
      Note([&] { control_->inputs.emplace_back(input, input + bytes); });
      std::memmove(piece.output, piece.input, bytes);
    }
    return Status::Ok();
  }
  Status Broadcast(std::span<const collective::BroadcastPiece> pieces, int root) override {
    HVL_RETURN_IF_ERROR(Call(pieces.size()));
    Note([&] { control_->roots.push_back(root); });
    for (const auto& piece : pieces) {
      if (piece.input != nullptr) std::memmove(piece.output, piece.input, piece.bytes);
    }
    return Status::Ok();
  }
  Status Allgather(std::span<const collective::GatherPiece> pieces) override {
    HVL_RETURN_IF_ERROR(Call(pieces.size()));
    for (const auto& piece : pieces) {
      auto* output = static_cast<std::byte*>(piece.output);
      for (const std::size_t bytes : piece.rank_bytes) {
        std::memcpy(output, piece.input, bytes);
        output += bytes;
      }
    }
    return Status::Ok();
  }
  Status Barrier() override { return Call(0); }
  /// As the first rank.
  Status Reducescatter(std::span<const collective::ScatterPiece> pieces,
                       const tensor::ReduceSpec& spec) override {
    HVL_RETURN_IF_ERROR(Call(pieces.size()));
    Note([&] { control_->specs.push_back(spec); });
    for (const auto& piece : pieces) {
      const auto count = static_cast<std::size_t>(piece.rank_elements[0]);
      if (count > 0) std::memcpy(piece.output, piece.input, count * DTypeBytes(spec.dtype));
    }
    return Status::Ok();
  }
  /// As the first rank, of two that have the same.
  Status Alltoall(std::span<const collective::ExchangePiece> pieces) override {
    HVL_RETURN_IF_ERROR(Call(pieces.size()));
    for (const auto& piece : pieces) {
      const std::size_t bytes = piece.bytes[0];
      if (bytes == 0) continue;
      std::memcpy(piece.output, piece.input, bytes);
      std::memcpy(static_cast<std::byte*>(piece.output) + bytes, piece.input, bytes);
    }
    return Status::Ok();
  }
  Result<std::unique_ptr<Backend>> Split(std::span<const int> ranks) override {
    return std::unique_ptr<Backend>(
        std::make_unique<FakeBackend>(control_, std::vector<int>(ranks.begin(), ranks.end())));
  }
  void Abort(const Status& cause) override {
    const std::lock_guard lock(control_->mutex);
    if (!control_->aborted) control_->aborted = cause;
    control_->changed.notify_all();
  }
  Result<SharedBuffer> Allocate(std::size_t) override {
    return Status(StatusCode::kNotSupported, "no shared memory");
  }

 private:
  template <typename Body>
  void Note(const Body& body) {
    const std::lock_guard lock(control_->mutex);
    body();
    control_->changed.notify_all();
  }
  void CountPart(int change) {
    if (!ranks_.empty()) Note([&] { control_->parts_alive += change; });
  }
  Status Call(std::size_t pieces) {
    std::unique_lock lock(control_->mutex);
    ++control_->calls;
    ++control_->running;
    control_->piece_counts.push_back(pieces);
    control_->threads.push_back(std::this_thread::get_id());
    control_->ranks.push_back(ranks_);
    control_->changed.notify_all();
    const bool in_time = control_->changed.wait_for(
        lock, kHangLimit, [this] { return !control_->blocked || control_->aborted; });
    --control_->running;
    if (control_->aborted) return *control_->aborted;
    if (!in_time) return Status(StatusCode::kInternal, "nobody ended the fake operation");
    return control_->fails;
  }

  const std::shared_ptr<Control> control_;  // shared with the test
  const std::vector<int> ranks_;
};

/// Writes events down as "B name activity", "E name", "I name what".
class RecordingSink final : public trace::Sink {
 public:
  void Begin(std::string_view tensor, std::string_view activity, TimePoint) override {
    Add("B " + std::string(tensor) + " " + std::string(activity));
  }
  void End(std::string_view tensor, TimePoint) override { Add("E " + std::string(tensor)); }
  void Instant(std::string_view tensor, std::string_view what, TimePoint) override {
    Add("I " + std::string(tensor) + " " + std::string(what));
  }
  std::vector<std::string> events() const {
    const std::lock_guard lock(mutex_);
    return events_;
  }

 private:
  void Add(std::string event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
  }
  mutable std::mutex mutex_;
  std::vector<std::string> events_;
};

}  // namespace hvl::test
