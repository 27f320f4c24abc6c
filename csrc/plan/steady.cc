#include "csrc/plan/steady.h"

#include <algorithm>
#include <utility>

namespace hvl::plan {

void SteadyState::NoteDecided(std::uint32_t operation, std::uint64_t ready) {
  if (operation >= memory_.size()) memory_.resize(std::size_t{operation} + 1);
  if (memory_[operation].number == number_) EndInstance(false);
  Memory& memory = memory_[operation];
  if (memory.number + 1 == number_) ++common_;
  memory.number = number_;
  if (std::exchange(memory.run, run_) != run_) memory.ready_sum = 0;
  memory.ready_sum += ready;
  current_.push_back(operation);
  if (common_ == current_.size() && common_ == previous_.size()) EndInstance(true);
}

void SteadyState::EndInstance(bool alike) {
  ++number_;
  instances_ = alike ? instances_ + 1 : 1;
  if (!alike) ++run_;
  previous_ = std::exchange(current_, {});
  common_ = 0;
}

void SteadyState::NoteOther() {
  if (instances_ == 0 && current_.empty()) return;
  number_ += 2;  // nothing is of the instance before
  ++run_;
  instances_ = 0;
  previous_.clear();
  current_.clear();
  common_ = 0;
}

/// Every instance gives an operation the count of operations that were ready before it, in all: so
/// sums over the same instances compare like mean places.
std::vector<std::uint32_t> SteadyState::LearnedOrder() const {
  std::vector<std::uint32_t> order = previous_;
  const auto key = [this](std::uint32_t operation) {
    return std::pair(memory_[operation].ready_sum, operation);
  };
  std::sort(order.begin(), order.end(),
            [&key](std::uint32_t a, std::uint32_t b) { return key(a) < key(b); });
  return order;
}

}  // namespace hvl::plan
