#include "csrc/net/round.h"

#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/rank_text.h"
#include "csrc/base/str.h"

namespace hvl::net {

Status CheckJoin(int rank, int size, std::size_t blob_bytes) {
  if (size < 1 || rank < 0 || rank >= size)
    return {StatusCode::kInvalidArgument,
            Format("rank {} of {} is not possible: expected 0 <= rank < size", rank, size)};
  if (blob_bytes > kMaxBlobBytes)
    return {StatusCode::kResourceExhausted,
            Format("rank {} wants to publish {} bytes at the rendezvous; the limit is {}", rank,
                   blob_bytes, kMaxBlobBytes)};
  return Status::Ok();
}

Status Round::Enter(int rank, int size, std::string blob) {
  HVL_CHECK(CheckJoin(rank, size, blob.size()).ok(), "join was not checked");
  if (blobs_.empty()) size_ = size;
  if (size != size_)
    return {StatusCode::kMismatch,
            Format("rank {} joins a world of {}, but rank {} joined a world of {}: HVL_SIZE (or "
                   "HOROVOD_SIZE) differs between their environments. Let hvlrun set it",
                   rank, size, blobs_.begin()->first, size_),
            rank};
  if (blobs_.contains(rank))
    return {StatusCode::kMismatch,
            Format("two processes join as rank {} of {}: HVL_RANK (or HOROVOD_RANK) is the same in "
                   "their environments. Let hvlrun set it",
                   rank, size),
            rank};
  if (table_bytes_ + blob.size() > kMaxTableBytes)
    return {StatusCode::kResourceExhausted,
            Format("the ranks publish more than {} bytes at the rendezvous", kMaxTableBytes), rank};
  table_bytes_ += blob.size();
  blobs_.emplace(rank, std::move(blob));
  return Status::Ok();
}

void Round::Leave(int rank) {
  const auto found = blobs_.find(rank);
  if (found == blobs_.end()) return;
  table_bytes_ -= found->second.size();
  blobs_.erase(found);
}

std::string Round::MissingRanks() const {
  HVL_CHECK(!blobs_.empty(), "nobody waits");
  std::vector<int> missing;
  for (int rank = 0; rank < size_; ++rank)
    if (!blobs_.contains(rank)) missing.push_back(rank);
  return RankRanges(missing);
}

std::vector<std::string> Round::TakeBlobs() {
  HVL_CHECK(complete(), "the round is not complete");
  std::vector<std::string> table;
  table.reserve(blobs_.size());
  for (auto& [rank, blob] : blobs_) table.push_back(std::move(blob));
  return table;
}

Status JoinTimeout(int rank, int size, const std::string& missing_ranks) {
  return {StatusCode::kTimeout,
          Format("rank {} of {} waited in vain for other ranks to join; missing: {}. Look for an "
                 "error in their output, or allow more time with HVL_START_TIMEOUT",
                 rank, size, missing_ranks)};
}

}  // namespace hvl::net
