// What the negotiation of a known tensor costs: nanoseconds of one core for the coordinator, for a
// participant and for the codec, without any waiting or network. Prints medians; asserts nothing.
// Usage: plan_cost [tensors per burst]
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/str.h"
#include "csrc/plan/coordinator.h"
#include "csrc/plan/participant.h"
#include "csrc/wire/codec.h"

namespace hvl::plan {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRepetitions = 301;

double Nanoseconds(Clock::duration time) {
  return std::chrono::duration<double, std::nano>(time).count();
}

/// The parts of one burst, timed apart.
struct Times {
  Clock::duration submit{}, announce{}, coordinate{}, apply{}, encode{}, decode{};
};

class World {
 public:
  World(int size, int tensors) : coordinator_(size, 0, Options{}) {
    for (int rank = 0; rank < size; ++rank) participants_.emplace_back(rank, size, 0);
    for (int i = 0; i < tensors; ++i) {
      wire::Signature signature;
      signature.name = Format("module.layer{}.block.conv.weight", i);
      signature.tensors = {{DType::kFloat32, 0, {256}}};
      signatures_.push_back(std::move(signature));
    }
  }

  /// Every rank submits every tensor; all of them run.
  Times Burst() {
    Times times;
    Effects effects;
    std::vector<wire::Announce> announcements;
    for (Participant& participant : participants_) {
      std::vector<Submission> submissions;
      for (const wire::Signature& signature : signatures_) {
        submissions.push_back({++ticket_, signature, {}, false});
      }
      const Clock::time_point start = Clock::now();
      for (Submission& submission : submissions) {
        participant.Submit(std::move(submission), effects);
      }
      const Clock::time_point submitted = Clock::now();
      for (wire::Announce& announce : participant.TakeAnnouncements()) {
        announcements.push_back(std::move(announce));
        ranks_.push_back(static_cast<int>(&participant - participants_.data()));
      }
      times.submit += submitted - start;
      times.announce += Clock::now() - submitted;
    }
    TimeCodec(announcements.back(), times);
    const Clock::time_point start = Clock::now();
    for (std::size_t i = 0; i < announcements.size(); ++i) {
      Require(coordinator_.OnAnnounce(ranks_[i], std::move(announcements[i]), {}, effects));
    }
    std::vector<wire::Decide> decisions = coordinator_.TakeDecisions();
    times.coordinate = Clock::now() - start;
    ranks_.clear();
    for (const wire::Decide& decide : decisions) {
      TimeCodec(decide, times);
      for (Participant& participant : participants_) {
        effects.run.clear();
        const Clock::time_point begin = Clock::now();
        Require(participant.Apply(decide, effects));
        times.apply += Clock::now() - begin;
      }
    }
    coordinator_.OnBatchFinished(participants_.front().last_sequence());
    (void)coordinator_.TakeDecisions();
    return times;
  }

 private:
  static void Require(const Status& status) {
    if (status.ok()) return;
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    std::_Exit(1);
  }
  template <typename Message>
  static void TimeCodec(const Message& message, Times& times) {
    const Clock::time_point start = Clock::now();
    const wire::Bytes frame = wire::Encode(message);
    const Clock::time_point encoded = Clock::now();
    Require(wire::Decode(frame).status());
    times.encode += encoded - start;
    times.decode += Clock::now() - encoded;
  }

  Coordinator coordinator_;
  std::vector<Participant> participants_;
  std::vector<wire::Signature> signatures_;
  std::vector<int> ranks_;
  Ticket ticket_ = 0;
};

double Median(const std::vector<Times>& all, Clock::duration Times::* part) {
  std::vector<double> values;
  for (const Times& times : all) values.push_back(Nanoseconds(times.*part));
  std::nth_element(values.begin(), values.begin() + kRepetitions / 2, values.end());
  return values[kRepetitions / 2];
}

void Measure(int size, int tensors) {
  World world(size, tensors);
  world.Burst();  // after it, all names are known
  std::vector<Times> all;
  for (int i = 0; i < kRepetitions; ++i) all.push_back(world.Burst());
  const double per_tensor = tensors;
  const double per_rank = per_tensor * size;
  std::puts(Format("{:5} {:8} {:12.1f} {:12.2f} {:10.1f} {:10.1f} {:10.1f} {:10.2f} {:10.2f}", size,
                   tensors, Median(all, &Times::coordinate) / per_tensor,
                   Median(all, &Times::coordinate) / per_rank,
                   Median(all, &Times::submit) / per_rank, Median(all, &Times::announce) / per_rank,
                   Median(all, &Times::apply) / per_rank, Median(all, &Times::encode) / per_tensor,
                   Median(all, &Times::decode) / per_tensor)
                .c_str());
}

}  // namespace
}  // namespace hvl::plan

int main(int argc, char** argv) {
  int tensors = 1000;
  if (argc > 1) std::from_chars(argv[1], argv[1] + std::strlen(argv[1]), tensors);
  std::puts("nanoseconds per known tensor:");
  std::puts(
      "ranks  tensors  coordinator   ... / rank     submit   announce      apply   encode"
      "     decode");
  for (const int size : {1, 2, 8, 64}) hvl::plan::Measure(size, std::max(tensors, 1));
  return 0;
}
