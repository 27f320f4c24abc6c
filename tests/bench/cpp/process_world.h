// Processes of this host that are the ranks of one world, each with a session; knobs (HVL_...) from
// the environment.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "csrc/config/config.h"
#include "csrc/net/store.h"
#include "csrc/session/session_impl.h"
#include "horovodlite/session.h"
#include "tests/bench/cpp/require.h"

namespace hvl::bench {

inline std::unique_ptr<Session> StartRank(int rank, int size, const std::string& address,
                                          const net::Secret& secret) {
  std::map<std::string, std::string, std::less<>> environment;
  const config::ProcessEnv process;
  for (const std::string& name : process.Names()) {
    if (name.starts_with("HVL_")) environment[name] = *process.Get(name);
  }
  environment["HVL_RANK"] = std::to_string(rank);
  environment["HVL_SIZE"] = std::to_string(size);
  auto config = config::Config::Parse(config::MapEnv(environment), nullptr);
  Require(config.status());
  auto store = net::OpenStore(address, secret, "bench");
  Require(store.status());
  auto session = session::CreateSession(*config, store->get(), secret, StderrSink());
  Require(session.status());
  return std::move(session).value();
}

/// Runs `body(address, secret, rank)` in a process per rank; true when all ended well. The body
/// starts its rank's session.
template <typename Body>
bool ForkRanks(int size, const Body& body) {
  const net::Secret secret = net::Secret::Random();
  auto server = net::StoreServer::Start(secret, "bench", Logger());
  Require(server.status());
  const std::string address = (*server)->address();
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t process = ::fork();
    if (process == 0) {
      body(rank, address, secret);
      std::fflush(stdout);
      std::_Exit(0);
    }
    ranks.push_back(process);
  }
  bool all_well = true;
  for (const pid_t process : ranks) {
    int status = 0;
    ::waitpid(process, &status, 0);
    all_well = all_well && status == 0;
  }
  return all_well;
}

}  // namespace hvl::bench
