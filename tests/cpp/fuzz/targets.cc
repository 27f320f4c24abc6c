#include "tests/cpp/fuzz/targets.h"

#include <array>

namespace hvl::fuzz {

std::span<const Target> Targets() {
  static constexpr std::array kTargets = {
      Target{"wire", RunDecode, DecodeCorpus},
      Target{"coordinator", RunCoordinator, CoordinatorCorpus},
      Target{"participant", RunParticipant, ParticipantCorpus},
      Target{"handshake", RunHandshake, HandshakeCorpus},
      Target{"net", RunNet, NetCorpus},
#ifdef HVL_FUZZ_LAUNCHER
      Target{"agent", RunAgentStream, AgentStreamCorpus},
#endif
  };
  return kTargets;
}

}  // namespace hvl::fuzz
