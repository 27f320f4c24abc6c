// Tickets: the numbers by which the planner speaks of operations.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "csrc/base/check.h"
#include "csrc/engine/registry.h"
#include "csrc/plan/planner.h"

namespace hvl::engine {

/// A ticket is a slot (low half) and the count of its uses (high half), so that finding an
/// operation is an index and a stale ticket is noticed. Not thread-safe.
class TicketTable {
 public:
  plan::Ticket Add(StatePtr state) {
    if (free_.empty()) {
      free_.push_back(static_cast<std::uint32_t>(slots_.size()));
      slots_.emplace_back();
    }
    const std::uint32_t index = free_.back();
    free_.pop_back();
    Slot& slot = slots_[index];
    slot.state = std::move(state);
    return Ticket(index, ++slot.uses);
  }

  const StatePtr& Get(plan::Ticket ticket) const {
    const auto index = static_cast<std::uint32_t>(ticket);
    HVL_CHECK(index < slots_.size() && slots_[index].state != nullptr &&
                  ticket == Ticket(index, slots_[index].uses),
              "the planner speaks of an operation that it does not have");
    return slots_[index].state;
  }

  StatePtr Remove(plan::Ticket ticket) {
    StatePtr state = Get(ticket);
    const auto index = static_cast<std::uint32_t>(ticket);
    slots_[index].state.reset();
    free_.push_back(index);
    return state;
  }

  std::vector<StatePtr> RemoveAll() {
    std::vector<StatePtr> all;
    for (Slot& slot : slots_) {
      if (slot.state) all.push_back(std::move(slot.state));
    }
    slots_.clear();
    free_.clear();
    return all;
  }

 private:
  struct Slot {
    StatePtr state;
    std::uint32_t uses = 0;
  };
  static plan::Ticket Ticket(std::uint32_t index, std::uint32_t uses) {
    return plan::Ticket{uses} << 32 | index;
  }

  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
};

}  // namespace hvl::engine
