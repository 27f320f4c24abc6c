// Sessions for tests: worlds whose ranks are threads of the test process.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "csrc/base/log.h"
#include "csrc/base/str.h"
#include "csrc/config/config.h"
#include "csrc/net/store.h"
#include "csrc/session/session_impl.h"
#include "horovodlite/session.h"
#include "tests/support/ranks.h"

namespace hvl::test {

using Knobs = std::map<std::string, std::string, std::less<>>;

/// The configuration that the environment `knobs` and this place in the world give.
inline Result<config::Config> ConfigOf(int rank, int size, Knobs knobs) {
  knobs["HVL_RANK"] = std::to_string(rank);
  knobs["HVL_SIZE"] = std::to_string(size);
  knobs.try_emplace("HVL_START_TIMEOUT", "60");
  return config::Config::Parse(config::MapEnv(std::move(knobs)), nullptr);
}

inline Result<std::unique_ptr<Session>> StartRank(int rank, int size, net::Store* store,
                                                  Knobs knobs,
                                                  std::shared_ptr<LogSink> sink = nullptr) {
  HVL_ASSIGN_OR_RETURN(const config::Config config, ConfigOf(rank, size, std::move(knobs)));
  return session::CreateSession(config, store, net::Secret{}, std::move(sink));
}

/// Runs `body(session)` on a thread per rank, each with a session of one world; returns the first
/// failure to start, and the body's values by rank. Sessions end when the body has returned on all
/// ranks, unless it ends its own before.
template <typename Body>
auto RunWorld(int size, const Knobs& knobs, const Body& body) {
  using Value = decltype(body(std::declval<Session&>()));
  net::MemoryStore store;
  std::vector<std::unique_ptr<Session>> sessions(static_cast<std::size_t>(size));
  const auto run = [&](int rank) -> Result<Value> {
    auto& session = sessions[static_cast<std::size_t>(rank)];
    HVL_ASSIGN_OR_RETURN(session, StartRank(rank, size, &store, knobs));
    return body(*session);
  };
  return RunRanks(size, run);
}

/// A fact that a rank finds wanting; empty = all is well. Threads report, the test's thread checks,
/// because Catch2's assertions belong to one thread.
using Complaint = std::string;

/// The first complaint of any rank, with its number.
inline Complaint FirstComplaint(const std::vector<Result<Complaint>>& results) {
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    const std::string text =
        results[rank].ok() ? results[rank].value() : results[rank].status().ToString();
    if (!text.empty()) return Format("rank {}: {}", rank, text);
  }
  return {};
}

}  // namespace hvl::test
