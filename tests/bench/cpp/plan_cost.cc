// What the negotiation of a known tensor costs: nanoseconds of one core for the coordinator, for a
// participant and for the codec, without any waiting or network. Prints medians; asserts nothing.
// Usage: plan_cost [tensors per burst]
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#include "csrc/base/str.h"
#include "tests/bench/cpp/plan_world.h"

namespace hvl::bench {
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

template <typename Body>
Clock::duration Time(const Body& body) {
  const Clock::time_point start = Clock::now();
  body();
  return Clock::now() - start;
}

template <typename Message>
void TimeCodec(const Message& message, Times& times) {
  wire::Bytes frame;
  times.encode += Time([&] { frame = wire::Encode(message); });
  times.decode += Time([&] { Require(wire::Decode(frame).status()); });
}

Times Burst(PlanWorld& world) {
  Times times;
  world.Prepare();
  times.submit = Time([&] { world.Submit(); });
  times.announce = Time([&] { world.Announce(); });
  TimeCodec(world.announcement(), times);
  times.coordinate = Time([&] { world.Coordinate(); });
  for (const wire::Decide& decide : world.decisions()) TimeCodec(decide, times);
  times.apply = Time([&] { world.Apply(); });
  world.Finish();
  return times;
}

double Median(const std::vector<Times>& all, Clock::duration Times::* part) {
  std::vector<double> values;
  for (const Times& times : all) values.push_back(Nanoseconds(times.*part));
  std::nth_element(values.begin(), values.begin() + kRepetitions / 2, values.end());
  return values[kRepetitions / 2];
}

void Measure(int size, int tensors) {
  PlanWorld world(size, tensors);
  Burst(world);  // after it, all names are known
  std::vector<Times> all;
  for (int i = 0; i < kRepetitions; ++i) all.push_back(Burst(world));
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
}  // namespace hvl::bench

int main(int argc, char** argv) {
  int tensors = 1000;
  if (argc > 1) std::from_chars(argv[1], argv[1] + std::strlen(argv[1]), tensors);
  std::puts("nanoseconds per known tensor:");
  std::puts(
      "ranks  tensors  coordinator   ... / rank     submit   announce      apply   encode"
      "     decode");
  for (const int size : {1, 2, 8, 64}) hvl::bench::Measure(size, std::max(tensors, 1));
  return 0;
}
