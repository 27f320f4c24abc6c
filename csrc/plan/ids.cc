#include "csrc/plan/ids.h"

#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/str.h"

namespace hvl::plan {

Ids::Ids(int size, std::size_t capacity)
    : size_(size),
      capacity_(capacity),
      epoch_of_rank_(static_cast<std::size_t>(size)),
      in_current_epoch_(size) {}

Status Ids::Enter(int rank, std::uint32_t epoch) {
  std::uint32_t& last = epoch_of_rank_[static_cast<std::size_t>(rank)];
  // An epoch starts only when all ranks have reached the one before, so `last` is not older still.
  if (epoch < last || epoch > epoch_) {
    return {StatusCode::kInternal,
            Format("ids of epoch {} after {}, now is {}", epoch, last, epoch_)};
  }
  last = epoch;
  if (epoch == epoch_) in_current_epoch_.Insert(rank);
  return Status::Ok();
}

Result<std::uint32_t> Ids::Find(std::uint32_t epoch, std::uint32_t id) const {
  const std::vector<std::uint32_t>& table = epoch == epoch_ ? current_ : previous_;
  if (id < table.size()) return table[id];
  return Status(StatusCode::kInternal, Format("id {} of {}", id, table.size()));
}

std::optional<std::uint32_t> Ids::Assign(std::uint32_t record) {
  if (current_.size() >= capacity_) return std::nullopt;
  current_.push_back(record);
  return static_cast<std::uint32_t>(current_.size() - 1);
}

const std::vector<std::uint32_t>& Ids::StartEpoch() {
  HVL_CHECK(MayStartEpoch(), "two epochs are in use");
  ++epoch_;
  previous_ = std::exchange(current_, {});
  previous_alive_ = true;
  in_current_epoch_ = RankSet(size_);
  return previous_;
}

std::vector<std::uint32_t> Ids::TakeForgotten() {
  if (!previous_alive_ || !in_current_epoch_.full()) return {};
  previous_alive_ = false;
  return std::exchange(previous_, {});
}

}  // namespace hvl::plan
