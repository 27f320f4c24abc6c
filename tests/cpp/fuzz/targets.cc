#include "tests/cpp/fuzz/targets.h"

#include <array>

namespace hvl::fuzz {

std::span<const Target> Targets() {
  static constexpr std::array kTargets = {
      Target{"wire", RunDecode, DecodeCorpus},
      Target{"coordinator", RunCoordinator, CoordinatorCorpus},
      Target{"participant", RunParticipant, ParticipantCorpus},
      Target{"handshake", RunHandshake, HandshakeCorpus},
      Target{"middle", RunMiddle, MiddleCorpus},
      Target{"net", RunNet, NetCorpus},
      Target{"environment", RunEnvironment, EnvironmentCorpus},
      Target{"status-page", RunStatusPage, StatusPageCorpus},
      Target{"greeting", RunGreeting, GreetingCorpus},
#ifdef HVL_FUZZ_LAUNCHER
      Target{"agent", RunAgentStream, AgentStreamCorpus},
      Target{"hosts", RunHosts, HostsCorpus},
      Target{"config-file", RunConfigFile, ConfigFileCorpus},
      Target{"output", RunOutput, OutputCorpus},
#endif
  };
  return kTargets;
}

}  // namespace hvl::fuzz
