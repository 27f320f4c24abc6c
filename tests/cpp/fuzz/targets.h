// What is fuzzed. A target takes any bytes and must neither crash nor break a rule of its own
// (HVL_CHECK), whatever they are. To add one: a file with its function, and a line in targets.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace hvl::fuzz {

using Input = std::vector<std::byte>;

struct Target {
  std::string_view name;
  void (*run)(std::span<const std::byte> input);
  /// Valid inputs to start from, for example what a peer that keeps the rules sends.
  std::vector<Input> (*corpus)(std::uint64_t seed);
};

std::span<const Target> Targets();

inline std::string_view Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
inline void Add(std::string_view text, std::vector<Input>& corpus) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  corpus.emplace_back(bytes.begin(), bytes.end());
}

// wire_target.cc
void RunDecode(std::span<const std::byte> input);
std::vector<Input> DecodeCorpus(std::uint64_t seed);

// planner_target.cc
void RunCoordinator(std::span<const std::byte> input);
void RunParticipant(std::span<const std::byte> input);
std::vector<Input> CoordinatorCorpus(std::uint64_t seed);
std::vector<Input> ParticipantCorpus(std::uint64_t seed);

// net_target.cc
void RunHandshake(std::span<const std::byte> input);
void RunNet(std::span<const std::byte> input);
std::vector<Input> HandshakeCorpus(std::uint64_t seed);
std::vector<Input> NetCorpus(std::uint64_t seed);

void RunMiddle(std::span<const std::byte> input);
std::vector<Input> MiddleCorpus(std::uint64_t seed);

// text_target.cc
void RunEnvironment(std::span<const std::byte> input);
void RunStatusPage(std::span<const std::byte> input);
void RunGreeting(std::span<const std::byte> input);
std::vector<Input> EnvironmentCorpus(std::uint64_t seed);
std::vector<Input> StatusPageCorpus(std::uint64_t seed);
std::vector<Input> GreetingCorpus(std::uint64_t seed);

// launcher_text_target.cc, where the launcher is built
void RunHosts(std::span<const std::byte> input);
void RunConfigFile(std::span<const std::byte> input);
void RunOutput(std::span<const std::byte> input);
std::vector<Input> HostsCorpus(std::uint64_t seed);
std::vector<Input> ConfigFileCorpus(std::uint64_t seed);
std::vector<Input> OutputCorpus(std::uint64_t seed);

// launcher_target.cc, where the launcher is built
void RunAgentStream(std::span<const std::byte> input);
std::vector<Input> AgentStreamCorpus(std::uint64_t seed);

}  // namespace hvl::fuzz
