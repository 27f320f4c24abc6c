// What a broken or hostile agent can send to the head of a job, and whoever stands in the head's
// place to an agent.
#include <optional>
#include <random>
#include <string>
#include <string_view>

#include "csrc/base/check.h"
#include "launcher/agent_frames.h"
#include "tests/cpp/fuzz/targets.h"

namespace hvl::fuzz {
namespace {

// Every frame that is taken has one encoding: the bytes it was read from.
template <typename Next>
void ReadAll(std::string_view bytes, Next next) {
  launcher::FrameReader reader;
  reader.Feed(bytes);
  const auto greeted = reader.Greeted();
  if (!greeted.ok() || !*greeted) return;
  std::string again = reader.noise() + launcher::Greeting();
  for (;;) {
    const auto frame = next(reader);
    if (!frame.ok() || !*frame) break;
    launcher::Encode(**frame, &again);
  }
  HVL_CHECK(bytes.starts_with(again), "a frame with two encodings");
}

}  // namespace

void RunAgentStream(std::span<const std::byte> input) {
  const std::string_view bytes(reinterpret_cast<const char*>(input.data()), input.size());
  ReadAll(bytes, [](launcher::FrameReader& reader) { return reader.NextOfHead(); });
  ReadAll(bytes, [](launcher::FrameReader& reader) { return reader.NextOfAgent(); });
}

std::vector<Input> AgentStreamCorpus(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Input> corpus;
  const auto add = [&corpus](std::string_view text) {
    const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
    corpus.emplace_back(bytes.begin(), bytes.end());
  };
  for (int i = 0; i < 10; ++i) {
    const std::string text(random() % 50, static_cast<char>(random()));
    const int rank = static_cast<int>(random() % 64);
    launcher::StartOrder start;
    start.folder = text;
    start.command = {"python", text};
    start.environment = {"A=" + text};
    start.ranks = {{.rank = rank, .settings = {text}, .processors = {0, rank}, .shown = true}};
    std::string head = (i % 2 == 0 ? "motd\n" : "") + launcher::Greeting();
    for (const launcher::HeadFrame& frame :
         {launcher::HeadFrame(start), launcher::HeadFrame(launcher::SignalOrder{rank, true}),
          launcher::HeadFrame(launcher::Beat())}) {
      launcher::Encode(frame, &head);
    }
    add(head);
    launcher::Hello hello;
    hello.host_name = text;
    hello.cores = {{.node = rank, .processors = {1, 2}}};
    std::string agent = launcher::Greeting();
    for (const launcher::AgentFrame& frame :
         {launcher::AgentFrame(hello), launcher::AgentFrame(launcher::Started{{rank, 7}, 0, text}),
          launcher::AgentFrame(launcher::Wrote{rank, true, text}),
          launcher::AgentFrame(launcher::Ended()),
          launcher::AgentFrame(launcher::Finished{{{rank, text, 'D'}}})}) {
      launcher::Encode(frame, &agent);
    }
    add(agent);
  }
  return corpus;
}

}  // namespace hvl::fuzz
