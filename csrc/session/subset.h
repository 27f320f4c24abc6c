// Sessions of some of the ranks that were started together: init(comm=[0, 2]).
#pragma once

#include <string>
#include <vector>

#include "csrc/config/config.h"
#include "csrc/net/store.h"
#include "horovodlite/status.h"

namespace hvl::session {

/// The identity of `config.rank` in a world of `ranks` (ascending) only. InvalidArgument when they
/// are no such ranks.
Result<config::Config> SubsetConfig(config::Config config, const std::vector<int>& ranks);

/// Where ranks meet when each belongs to one of several worlds. All ranks that were started
/// together meet at once, each with the ranks of its own world.
class SubsetStore final : public net::Store {
 public:
  /// `whole` has the rank and the size of the world that was started; `store` outlives this.
  SubsetStore(net::Store& store, const config::Config& whole, std::vector<int> ranks)
      : store_(store), rank_(whole.rank), size_(whole.size), ranks_(std::move(ranks)) {}

  /// Mismatch when the ranks of this world have named different ones.
  Result<net::Rendezvous> Join(int rank, int size, const std::string& blob,
                               Duration timeout) override;
  Result<std::string> LocalHost(TimePoint deadline) override { return store_.LocalHost(deadline); }

 private:
  net::Store& store_;
  const int rank_, size_;
  const std::vector<int> ranks_;
};

}  // namespace hvl::session
