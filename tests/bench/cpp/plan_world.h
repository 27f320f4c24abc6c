// The negotiation of one burst of known tensors, part by part, without threads or network: what
// plan_cost times and hot_paths counts.
#pragma once

#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "csrc/base/str.h"
#include "csrc/plan/coordinator.h"
#include "csrc/plan/participant.h"
#include "csrc/wire/codec.h"
#include "tests/bench/cpp/require.h"

namespace hvl::bench {

/// All ranks' planners. The parts of a burst are called in the order in which they stand here.
class PlanWorld {
 public:
  PlanWorld(int size, int tensors) : coordinator_(size, 0, plan::Options{}) {
    for (int rank = 0; rank < size; ++rank)
      participants_.emplace_back(rank, size, 0, plan::Options{});
    for (int i = 0; i < tensors; ++i) {
      wire::Signature signature;
      signature.name = Format("module.layer{}.block.conv.weight", i);
      signature.tensors = {{DType::kFloat32, 0, {256}}};
      signatures_.emplace_back(std::move(signature));
    }
  }

  /// What a burst needs besides; belongs to no part.
  void Prepare() {
    submissions_.assign(participants_.size(), {});
    for (std::vector<plan::Submission>& own : submissions_) {
      for (const plan::SharedSignature& signature : signatures_) {
        own.push_back({++ticket_, signature, {}, false});
      }
    }
    effects_.run.clear();
    announcements_.clear();
    decisions_.clear();
  }
  /// Every rank submits every tensor.
  void Submit() {
    for (std::size_t rank = 0; rank < participants_.size(); ++rank) {
      for (plan::Submission& submission : submissions_[rank]) {
        participants_[rank].Submit(std::move(submission), {}, effects_);
      }
    }
  }
  void Announce() {
    for (std::size_t rank = 0; rank < participants_.size(); ++rank) {
      for (wire::Announce& announce : participants_[rank].TakeAnnouncements()) {
        announcements_.emplace_back(static_cast<int>(rank), std::move(announce));
      }
    }
  }
  void Coordinate() {
    for (auto& [rank, announce] : announcements_) {
      Require(coordinator_.OnAnnounce(rank, std::move(announce), {}, effects_));
    }
    decisions_ = coordinator_.TakeDecisions();
  }
  /// Every rank learns what is decided.
  void Apply() {
    for (const wire::Decide& decide : decisions_) {
      for (plan::Participant& participant : participants_) {
        effects_.run.clear();
        Require(participant.Apply(decide, {}, effects_));
      }
    }
  }
  /// Belongs to no part.
  void Finish() {
    coordinator_.OnBatchFinished(participants_.front().last_sequence(), {}, effects_);
    (void)coordinator_.TakeDecisions();
  }

  /// A message as it is on its way: one after Announce, one after Coordinate.
  const wire::Announce& announcement() const { return announcements_.back().second; }
  const std::vector<wire::Decide>& decisions() const { return decisions_; }

 private:
  plan::Coordinator coordinator_;
  std::vector<plan::Participant> participants_;
  std::vector<plan::SharedSignature> signatures_;  // as engines do, each brings the same again
  std::vector<std::vector<plan::Submission>> submissions_;  // by rank
  std::vector<std::pair<int, wire::Announce>> announcements_;
  std::vector<wire::Decide> decisions_;
  plan::Effects effects_;
  plan::Ticket ticket_ = 0;
};

}  // namespace hvl::bench
