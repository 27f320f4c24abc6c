#include "csrc/trace/chrome_format.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "csrc/base/str.h"

namespace hvl::trace {

std::string JsonString(std::string_view text) {
  std::string shown(text.substr(0, kMaxNameBytes));
  if (shown.size() < text.size()) shown += "...";
  return nlohmann::json(std::move(shown))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string ProcessZero(int rank, std::int64_t epoch_us) {
  return Format(
      R"({{"name": "process_name", "ph": "M", "pid": 0, "args": {{"name": "rank {}", )"
      R"("start_time_since_epoch_in_micros": {}}}}},)"
      "\n"
      R"({{"name": "process_sort_index", "ph": "M", "pid": 0, "args": {{"sort_index": 0}}}})",
      rank, epoch_us);
}

double ChromeFormatter::Micros(TimePoint at) const {
  return std::chrono::duration<double, std::micro>(at - origin_).count();
}

ChromeFormatter::Track* ChromeFormatter::FindOrAddTrack(std::string_view tensor) {
  if (const auto found = tracks_.find(tensor); found != tracks_.end()) return &found->second;
  if (tracks_.size() >= max_tracks_) return nullptr;
  const std::size_t pid = tracks_.size() + 1;
  emit_(Format(R"({{"name": "process_name", "ph": "M", "pid": {}, "args": {{"name": {}}}}})", pid,
               JsonString(tensor)));
  emit_(Format(
      R"({{"name": "process_sort_index", "ph": "M", "pid": {0}, "args": {{"sort_index": {0}}}}})",
      pid));
  return &tracks_.emplace(tensor, Track{.pid = pid}).first->second;
}

bool ChromeFormatter::Add(const Event& event) {
  last_ = std::max(last_, event.at);
  const double ts = Micros(event.at);
  if (event.kind == EventKind::kInstant && event.tensor.empty()) {
    emit_(Format(R"({{"ph": "i", "name": {}, "ts": {:.3f}, "pid": 0, "tid": 0, "s": "g"}})",
                 JsonString(event.what), ts));
    return true;
  }
  Track* track = FindOrAddTrack(event.tensor);
  if (track == nullptr) return false;
  switch (event.kind) {
    case EventKind::kBegin:
      ++track->open;
      emit_(Format(R"({{"ph": "B", "name": {}, "ts": {:.3f}, "pid": {}, "tid": 0}})",
                   JsonString(event.what), ts, track->pid));
      break;
    case EventKind::kEnd:
      if (track->open == 0) break;  // its beginning came before this timeline, or was dropped
      --track->open;
      emit_(Format(R"({{"ph": "E", "ts": {:.3f}, "pid": {}, "tid": 0}})", ts, track->pid));
      break;
    case EventKind::kInstant:
      emit_(Format(R"({{"ph": "X", "name": {}, "ts": {:.3f}, "dur": 0, "pid": {}, "tid": 0}})",
                   JsonString(event.what), ts, track->pid));
      break;
  }
  return true;
}

void ChromeFormatter::AddDropped(std::uint64_t dropped) {
  const double ts = Micros(last_);
  for (auto& [tensor, track] : tracks_) {
    for (; track.open > 0; --track.open) {
      emit_(Format(R"({{"ph": "E", "ts": {:.3f}, "pid": {}, "tid": 0}})", ts, track.pid));
    }
  }
  emit_(Format(R"({{"ph": "i", "name": "DROPPED_EVENTS", "ts": {:.3f}, "pid": 0, "tid": 0, )"
               R"("s": "g", "args": {{"count": {}}}}})",
               ts, dropped));
}

}  // namespace hvl::trace
