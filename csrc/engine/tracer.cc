#include "csrc/engine/tracer.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "csrc/base/str.h"

namespace hvl::engine {
namespace {

std::string Upper(std::string_view text) {
  std::string upper(text);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return upper;
}

std::string ActivityName(OpKind kind) { return Upper(OpKindName(kind)); }

}  // namespace

void Tracer::Set(std::shared_ptr<trace::Sink> sink, bool mark_cycles) {
  const MutexLock lock(mutex_);
  const std::uint64_t epoch = epoch_.load(std::memory_order_relaxed);
  const bool was_on = epoch % 2 == 1;
  const bool is_on = sink != nullptr;
  epoch_.store(epoch + (was_on == is_on ? 2 : 1), std::memory_order_relaxed);
  sink_ = std::move(sink);
  mark_cycles_ = mark_cycles;
}

Tracer::Current Tracer::Get() const {
  const MutexLock lock(mutex_);
  return {sink_, epoch_.load(std::memory_order_relaxed), mark_cycles_};
}

void Tracer::Cycle() {
  const Current current = Get();
  if (current.sink && current.mark_cycles) current.sink->Instant("", "CYCLE_START", clock_.Now());
}

void Tracer::BeginNegotiation(const Current& current, OpKind kind, const std::string& name) {
  if (negotiating_epoch_ != current.epoch) negotiating_.clear();
  negotiating_epoch_ = current.epoch;
  if (!negotiating_.insert(name).second) return;
  current.sink->Begin(name, "NEGOTIATE_" + ActivityName(kind), clock_.Now());
}

void Tracer::EndNegotiation(const Current& current, const std::string& name) {
  if (negotiating_epoch_ != current.epoch || negotiating_.erase(name) == 0) return;
  current.sink->End(name, clock_.Now());
}

void Tracer::Submitted(const Handle::State& state) {
  const Current current = Get();
  // The coordinating rank hears of every announcement, its own included, by Ready.
  if (current.sink == nullptr || coordinates_) return;
  BeginNegotiation(current, state.operation.kind, state.operation.name);
}

void Tracer::Ready(const plan::ReadyNote& note) {
  const Current current = Get();
  if (current.sink == nullptr) return;
  BeginNegotiation(current, note.kind, note.name);
  current.sink->Instant(note.name, Format("rank {} ready", note.rank), clock_.Now());
}

void Tracer::Dispatched(Handle::State& state) {
  const Current current = Get();
  if (current.sink == nullptr) return;
  EndNegotiation(current, state.operation.name);
  state.trace_epoch = current.epoch;
  state.trace_phase = TracePhase::kQueued;
  current.sink->Begin(state.operation.name, "QUEUE", clock_.Now());
}

void Tracer::EndedUnplanned(const Handle::State& state) {
  const Current current = Get();
  if (current.sink) EndNegotiation(current, state.operation.name);
}

void Tracer::Running(Handle::State& state, std::string_view backend) {
  const Current current = Get();
  if (current.sink == nullptr || state.trace_epoch != current.epoch) return;
  if (state.trace_phase == TracePhase::kRunning) return;  // another part of it is in this batch
  const std::string& name = state.operation.name;
  const std::string activity = ActivityName(state.operation.kind);
  if (state.trace_phase == TracePhase::kQueued) current.sink->End(name, clock_.Now());
  state.trace_phase = TracePhase::kRunning;
  current.sink->Begin(name, activity, clock_.Now());
  current.sink->Begin(name, Upper(backend) + "_" + activity, clock_.Now());
}

void Tracer::Ran(Handle::State& state) {
  const Current current = Get();
  if (current.sink == nullptr || state.trace_epoch != current.epoch) return;
  if (state.trace_phase != TracePhase::kRunning) return;
  state.trace_phase = TracePhase::kNone;
  current.sink->End(state.operation.name, clock_.Now());
  current.sink->End(state.operation.name, clock_.Now());
}

}  // namespace hvl::engine
