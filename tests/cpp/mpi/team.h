// Ranks as processes that mpirun has started. All of them run the same test cases in the same order
// from the same seed.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "csrc/collective/backend.h"
#include "csrc/plugin/mpi.h"
#include "horovodlite/status.h"
#include "tests/cpp/contract/scenario.h"

namespace hvl::mpi::test {

using collective::contract::Scenario;
using Scenarios = std::vector<std::unique_ptr<Scenario>>;

/// A session over MPI, seen from this process.
class Team {
 public:
  /// The ranks are numbered against MPI's order. The last group of the options ends with them.
  /// Fails the test case on an error.
  explicit Team(plugin::MpiOptions options = {});
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(world_.size()); }
  collective::Backend& backend() { return *world_[static_cast<std::size_t>(rank_)]; }
  /// For scenarios: the other ranks cannot be called.
  collective::contract::World& world() { return world_; }
  /// The same numbers on every rank.
  std::mt19937_64& random() { return random_; }

  /// Runs the scenarios in order, then compares this rank's memory. An operation that takes longer
  /// than any honest one is aborted.
  void RunAndCheck(const Scenarios& scenarios);
  void RunAndCheck(std::unique_ptr<Scenario> scenario);

 private:
  int rank_ = 0;
  collective::contract::World world_;
  std::mt19937_64 random_;
};

/// Opens the plug-in that was built with these tests.
Result<plugin::Mpi*> OpenPlugin();
/// Options with the place of this process.
plugin::MpiOptions WithPlace(plugin::MpiOptions options);

}  // namespace hvl::mpi::test
