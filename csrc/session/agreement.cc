#include "csrc/session/agreement.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "csrc/base/rank_text.h"
#include "csrc/base/str.h"

namespace hvl::session {
namespace {

constexpr std::string_view kVersionName = "horovodlite version";
constexpr std::string_view kPlaceName = "place";  // differs, and must
constexpr std::string_view kAbsent = "(not known)";

using Description = std::map<std::string, std::string, std::less<>>;

Description Parse(std::string_view text) {
  Description description;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos) continue;
    description.emplace(line.substr(0, equals), line.substr(equals + 1));
  }
  return description;
}

/// "0 on rank 1 and 134217728 on ranks 0, 2-3"; nothing when all ranks have the same value.
std::string Difference(const std::string& name, std::span<const Description> descriptions) {
  std::map<std::string, std::vector<int>> ranks_of_value;
  for (std::size_t rank = 0; rank < descriptions.size(); ++rank) {
    const auto found = descriptions[rank].find(name);
    ranks_of_value[found == descriptions[rank].end() ? std::string(kAbsent) : found->second]
        .push_back(static_cast<int>(rank));
  }
  if (ranks_of_value.size() == 1) return {};
  std::string text;
  for (const auto& [value, ranks] : ranks_of_value) {
    text += Format("{}{} on {}", text.empty() ? "" : " and ", value, RanksText(ranks));
  }
  return text;
}

/// No two processes are the n-th one of the same host.
Status CheckPlaces(std::span<const Description> descriptions) {
  std::map<std::string_view, std::size_t> rank_at;
  for (std::size_t rank = 0; rank < descriptions.size(); ++rank) {
    const auto place = descriptions[rank].find(kPlaceName);
    if (place == descriptions[rank].end()) continue;
    const auto [other, is_new] = rank_at.emplace(place->second, rank);
    if (is_new) continue;
    return Status(StatusCode::kMismatch,
                  Format("ranks {} and {} both have {} in their environments, and every process "
                         "needs a place of its own. Let hvlrun set both",
                         other->second, rank, place->second),
                  static_cast<int>(rank));
  }
  return Status::Ok();
}

}  // namespace

std::string DescribeRank(const config::Config& config) {
  std::string text = Format("{}={}\n", kVersionName, HVL_VERSION);
  // Other launchers than hvlrun do not tell the cross rank; hosts show when the ranks have met.
  const bool knows_place = config.local_size == config.size || config.cross_size > 1;
  if (knows_place) {
    text += Format("{}=HVL_LOCAL_RANK={} and HVL_CROSS_RANK={}\n", kPlaceName, config.local_rank,
                   config.cross_rank);
  }
  for (const config::KnobInfo& knob : config::AllKnobs()) {
    if (!knob.must_agree) continue;
    std::string value = config::KnobText(config, knob.env_name);
    std::replace(value.begin(), value.end(), '\n', ' ');
    text += Format("{}={}\n", knob.env_name, value);
  }
  return text;
}

// A different version explains every other difference, so it is reported alone.
Status CheckAgreement(std::span<const std::string> descriptions) {
  std::vector<Description> parsed;
  std::set<std::string> names;
  for (const std::string& description : descriptions) {
    parsed.push_back(Parse(description));
    for (const auto& [name, value] : parsed.back()) names.insert(name);
  }
  if (const std::string text = Difference(std::string(kVersionName), parsed); !text.empty()) {
    return Status(
        StatusCode::kMismatch,
        Format("ranks run different builds: the {} is {}; install the same one everywhere",
               kVersionName, text));
  }
  std::string differences;
  for (const std::string& name : names) {
    const std::string text = name == kPlaceName ? "" : Difference(name, parsed);
    if (text.empty()) continue;
    differences += Format("{}{} is {}", differences.empty() ? "" : "; ", name, text);
  }
  if (differences.empty()) return CheckPlaces(parsed);
  return Status(StatusCode::kMismatch,
                Format("ranks disagree on settings that must be the same everywhere: {}; set them "
                       "once for the whole job",
                       differences));
}

}  // namespace hvl::session
