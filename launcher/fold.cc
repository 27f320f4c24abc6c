#include "launcher/fold.h"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace hvl::launcher {
namespace {

bool IsOf(const SharedLine& line, int rank) {
  return std::binary_search(line.ranks.begin(), line.ranks.end(), rank);
}

bool IsOnlyOf(const SharedLine& line, int rank) {
  return line.ranks.size() == 1 && line.ranks.front() == rank;
}

/// The end of a bar or of a line that has begun on the screen is of no use to another rank.
bool IsWholeLine(const Segment& segment) {
  using Ending = Segment::Ending;
  const bool ended = segment.ending != Ending::kReturn && segment.ending != Ending::kOpen;
  return ended && !segment.after_return && !segment.continues;
}

}  // namespace

bool Fold::Hold(const Source& source, const Segment& segment, TimePoint now) {
  if (!IsWholeLine(segment)) {
    const auto last = last_of_rank_.find(source.rank);
    if (last != last_of_rank_.end()) EmitThrough(last->second);
    return false;
  }
  Held held{.line = {.ranks = {source.rank},
                     .is_stderr = source.is_stderr,
                     .text = std::string(segment.text),
                     .ending = segment.ending},
            .hash = std::hash<std::string_view>{}(segment.text),
            .since = now};
  Position at = FindSame(held);
  if (at == held_.end()) {
    if (held_.empty()) deadline_ = now + kFoldWindow;
    ++alike_[held.hash].lines;
    held_bytes_ += held.line.text.size();
    at = held_.insert(held_.end(), std::move(held));
  } else {
    std::vector<int>& ranks = at->line.ranks;
    ranks.insert(std::lower_bound(ranks.begin(), ranks.end(), source.rank), source.rank);
  }
  last_of_rank_[source.rank] = at;
  ++alike_[at->hash].lines_of_rank[source.rank];
  // All ranks are here or further on, so nobody can join what is before it either.
  if (at->line.ranks.size() == writers_) EmitThrough(at);
  while (held_.size() > kMaxLines || held_bytes_ > kMaxBytes) EmitThrough(held_.begin());
  return true;
}

/// The held line that the rank of `wanted` joins, or the end. Terms: a line is the rank's own while
/// nobody shares it. No line before the last one that the rank shares can be joined, or the order
/// of the rank would be lost; behind that one, its own lines can still be moved forward.
Fold::Position Fold::FindSame(const Held& wanted) {
  const int rank = wanted.line.ranks.front();
  const auto alike = alike_.find(wanted.hash);
  if (alike == alike_.end()) return held_.end();
  const auto own = alike->second.lines_of_rank.find(rank);
  if (own != alike->second.lines_of_rank.end() && own->second == alike->second.lines) {
    return held_.end();
  }
  const auto last = last_of_rank_.find(rank);
  const Position behind =
      last == last_of_rank_.end() ? held_.begin() : std::next(last->second);  // of all its lines
  Position first = behind;                                                    // that can be joined
  while (first != held_.begin()) {
    const SharedLine& before = std::prev(first)->line;
    if (!IsOnlyOf(before, rank) && IsOf(before, rank)) break;
    --first;
  }
  const auto same = [&wanted, rank](const Held& held) {
    return held.hash == wanted.hash && held.line.is_stderr == wanted.line.is_stderr &&
           held.line.ending == wanted.line.ending && held.line.text == wanted.line.text &&
           !IsOnlyOf(held.line, rank);
  };
  const Position found = std::find_if(first, behind, same);
  if (found == behind) return std::find_if(behind, held_.end(), same);
  for (Position at = std::next(found); at != behind;) {
    const Position next = std::next(at);
    if (IsOnlyOf(at->line, rank)) held_.splice(found, held_, at);
    at = next;
  }
  return found;
}

void Fold::EmitThrough(Position last) {
  for (bool more = true; more;) {
    const Position front = held_.begin();
    more = front != last;
    emit_(front->line);
    const auto alike = alike_.find(front->hash);
    for (const int rank : front->line.ranks) {
      --alike->second.lines_of_rank[rank];
      const auto known = last_of_rank_.find(rank);
      if (known->second == front) last_of_rank_.erase(known);
    }
    if (--alike->second.lines == 0) alike_.erase(alike);
    held_bytes_ -= front->line.text.size();
    held_.pop_front();
  }
}

void Fold::OnTime(TimePoint now) {
  if (held_.empty() || now < deadline_) return;
  const auto is_due = [now](const Held& held) { return held.since + kFoldWindow <= now; };
  const auto last = std::find_if(held_.rbegin(), held_.rend(), is_due);
  if (last != held_.rend()) EmitThrough(std::prev(last.base()));
  TimePoint oldest = now;
  for (const Held& held : held_) oldest = std::min(oldest, held.since);
  deadline_ = oldest + kFoldWindow;
}

void Fold::Flush() {
  if (!held_.empty()) EmitThrough(std::prev(held_.end()));
}

std::optional<TimePoint> Fold::deadline() const {
  if (held_.empty()) return std::nullopt;
  return deadline_;
}

}  // namespace hvl::launcher
