#include "csrc/session/subset.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "csrc/base/rank_text.h"
#include "csrc/base/str.h"

namespace hvl::session {
namespace {

std::string ListText(const std::vector<int>& ranks) {
  return ranks.empty() ? "all ranks" : RankList(ranks);
}

}  // namespace

Result<config::Config> SubsetConfig(config::Config config, const std::vector<int>& ranks) {
  const bool ascending =
      std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  if (ranks.empty() || !ascending || ranks.front() < 0 || ranks.back() >= config.size) {
    return Status(StatusCode::kInvalidArgument, Format("{} are not different ranks from 0 to {}",
                                                       ListText(ranks), config.size - 1));
  }
  const auto found = std::find(ranks.begin(), ranks.end(), config.rank);
  if (found == ranks.end()) {
    return Status(StatusCode::kInvalidArgument,
                  Format("this process is rank {}, which is not one of {}; pass the ranks of its "
                         "own world",
                         config.rank, ListText(ranks)));
  }
  // Tells the worlds of a job from each other; a job's name is at most 64 bytes long.
  config.job_id = Format("{}/{}", config.job_id.substr(0, 56), ranks.front());
  config.rank = config.local_rank = static_cast<int>(found - ranks.begin());
  config.size = config.local_size = static_cast<int>(ranks.size());
  // Which of them share a host shows when they meet (PlaceByHosts).
  config.cross_rank = 0;
  config.cross_size = 1;
  return config;
}

/// A blob is preceded by the list, which ends with a line feed.
Result<net::Rendezvous> SubsetStore::Join(int /*rank*/, int /*size*/, const std::string& blob,
                                          Duration timeout) {
  const std::string own = ListText(ranks_) + "\n";
  HVL_ASSIGN_OR_RETURN(net::Rendezvous whole, store_.Join(rank_, size_, own + blob, timeout));
  net::Rendezvous part{.generation = whole.generation, .blobs = {}, .secret = whole.secret};
  for (const int rank : ranks_) {
    const std::string_view theirs = whole.blobs[static_cast<std::size_t>(rank)];
    if (!theirs.starts_with(own)) {
      const std::string_view list = theirs.substr(0, theirs.find('\n'));
      return Status(StatusCode::kMismatch,
                    Format("rank {} makes a world of {}, but rank {} has another one of {}; pass "
                           "the same ranks on each of them",
                           rank_, ListText(ranks_), rank,
                           list.starts_with('[') ? list : std::string_view("all ranks")),
                    rank);
    }
    part.blobs.emplace_back(theirs.substr(own.size()));
  }
  return part;
}

}  // namespace hvl::session
