#include "csrc/plan/sites.h"

#include <algorithm>
#include <cstddef>

#include "csrc/base/str.h"

namespace hvl::plan {

void Sites::Note(int rank, const std::string& site, int size) {
  if (site.empty()) return;
  for (Site& known : sites_) known.ranks.Erase(rank);
  const auto same = std::find_if(sites_.begin(), sites_.end(),
                                 [&site](const Site& known) { return known.text == site; });
  if (same == sites_.end()) {
    sites_.push_back({site, RankSet(size)});
    sites_.back().ranks.Insert(rank);
  } else {
    same->ranks.Insert(rank);
  }
  std::erase_if(sites_, [](const Site& known) { return known.ranks.empty(); });
}

std::string Sites::ToString(const RankSet& ranks) const {
  constexpr std::size_t kMaxSites = 8;
  std::string text;
  std::size_t shown = 0;
  for (const Site& site : sites_) {
    RankSet among = site.ranks;
    among.EraseAll(ranks.Complement());
    if (among.empty()) continue;
    if (++shown > kMaxSites) return text + " and others";
    text += Format("{}{} on {}", text.empty() ? "" : ", ", site.text, among.ToString());
  }
  return text;
}

}  // namespace hvl::plan
