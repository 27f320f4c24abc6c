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

// launcher_target.cc, where the launcher is built
void RunAgentStream(std::span<const std::byte> input);
std::vector<Input> AgentStreamCorpus(std::uint64_t seed);

}  // namespace hvl::fuzz
