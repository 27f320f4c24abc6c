// Recognises a program that repeats itself: the coordinator's memory of what it has decided lately.
// docs/negotiation.md tells what follows from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvl::plan {

/// An *instance* is one execution of each operation of a set; it ends when an operation comes
/// again, or when it is seen to be the instance before once more. Counts how many of them in a row
/// were of the same set. Operations are numbers that the caller chooses, small ones. A constant
/// number of steps per operation.
class SteadyState {
 public:
  /// An operation has been decided, alike in every respect to the last time. `ready` counts in
  /// which order operations became ready.
  void NoteDecided(std::uint32_t operation, std::uint64_t ready);
  /// Anything else has been decided: counts from the beginning.
  void NoteOther();

  /// Instances in a row that were alike, if the last one has just ended; otherwise 0.
  std::uint64_t instances() const { return current_.empty() ? instances_ : 0; }
  /// The operations of such an instance, in the order in which they mostly became ready.
  std::vector<std::uint32_t> LearnedOrder() const;

 private:
  struct Memory {
    std::uint64_t number = 0;  // of the last instance with it
    std::uint64_t run = 0;     // of instances that are alike, which `ready_sum` is over
    std::uint64_t ready_sum = 0;
  };

  void EndInstance(bool alike);

  std::vector<Memory> memory_;  // by operation
  std::vector<std::uint32_t> previous_;
  std::vector<std::uint32_t> current_;
  std::size_t common_ = 0;    // operations of the current instance that the previous one had
  std::uint64_t number_ = 2;  // of the current instance
  std::uint64_t run_ = 1;     // of the current run of instances that are alike
  std::uint64_t instances_ = 0;
};

}  // namespace hvl::plan
