// Bytes to a message: accepted ones must survive being encoded and decoded again.
#include <variant>

#include "csrc/base/check.h"
#include "csrc/wire/codec.h"
#include "tests/cpp/fuzz/targets.h"
#include "tests/support/random_messages.h"

namespace hvl::fuzz {

void RunDecode(std::span<const std::byte> input) {
  const Result<wire::Message> message = wire::Decode(input);
  if (!message.ok()) {
    HVL_CHECK(message.status().code() == StatusCode::kInternal);
    return;
  }
  const auto generation = std::visit([](const auto& value) { return value.generation; }, *message);
  HVL_CHECK(*wire::PeekGeneration(input) == generation);
  const wire::Bytes again =
      std::visit([](const auto& value) { return wire::Encode(value); }, *message);
  const Result<wire::Message> second = wire::Decode(again);
  HVL_CHECK(second.ok(), second.status().message());
  HVL_CHECK(*second == *message, "a message that changes when it is sent on");
}

std::vector<Input> DecodeCorpus(std::uint64_t seed) {
  test::RandomMessages random(seed);
  std::vector<Input> corpus;
  for (int i = 0; i < 50; ++i) {
    corpus.push_back(wire::Encode(random.Announce()));
    corpus.push_back(wire::Encode(random.Decide()));
    corpus.push_back(wire::Encode(random.Bye()));
    corpus.push_back(wire::Encode(random.Stopped()));
  }
  return corpus;
}

}  // namespace hvl::fuzz
