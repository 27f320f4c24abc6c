// Rendezvous: one call in which all ranks meet, get a generation and exchange one blob each.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/base/clock.h"
#include "csrc/base/log.h"
#include "csrc/net/secret.h"
#include "horovodlite/interrupt.h"
#include "horovodlite/status.h"

namespace hvl::net {

struct Rendezvous {
  std::uint64_t generation = 0;    ///< issued by the store, grows with each completed rendezvous
  std::vector<std::string> blobs;  ///< by rank
  /// For the links between the ranks, where the store makes one; else they have one already.
  std::optional<Secret> secret = std::nullopt;
};

class Store {
 public:
  virtual ~Store() = default;
  /// Collective; blocks until all `size` ranks have joined, at most `timeout`. Timeout names the
  /// missing ranks; Mismatch when ranks disagree on size or two claim one rank; Unavailable when
  /// the store is gone, or, with the rank, when the host of one that waits has fallen silent. A
  /// rank that gives up (or dies) leaves the round, so a later attempt starts clean.
  virtual Result<Rendezvous> Join(int rank, int size, const std::string& blob,
                                  Duration timeout) = 0;
  /// The numeric address by which ranks on other hosts reach this one, as far as the way to the
  /// store tells; may wait until `deadline` for names to be known. Empty: all ranks are on one
  /// host.
  virtual Result<std::string> LocalHost(TimePoint deadline);
};

/// For ranks that are threads of one process. Thread-safe; shared by all ranks.
class MemoryStore final : public Store {
 public:
  MemoryStore();
  ~MemoryStore() override;
  Result<Rendezvous> Join(int rank, int size, const std::string& blob, Duration timeout) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The server that a launcher runs: one thread, authenticated, bounded. Stops with the object.
class StoreServer {
 public:
  /// Listens on an abstract Unix socket with a random name (one host).
  static Result<std::unique_ptr<StoreServer>> Start(const Secret& secret, const std::string& job_id,
                                                    Logger logger);
  /// The same with a name that clients know, for one rendezvous and not for a whole job. Null: it
  /// is taken.
  static Result<std::unique_ptr<StoreServer>> StartAt(std::string_view name, const Secret& secret,
                                                      const std::string& job_id, Logger logger);
  /// On TCP, for ranks of several hosts. `hosts` are names or numeric addresses of this machine;
  /// the server listens on these and on no other, all with one port (0: any free one). Null: the
  /// port is taken. InvalidArgument names a host that is not this machine.
  static Result<std::unique_ptr<StoreServer>> StartTcp(std::span<const std::string> hosts,
                                                       std::uint16_t port, const Secret& secret,
                                                       const std::string& job_id, Logger logger);
  virtual ~StoreServer() = default;
  /// Gives the name back, ends whoever still waits for others, and returns when every rank that has
  /// an answer has taken it (at most 30 s later).
  virtual void Finish() = 0;
  /// What to put into HVL_STORE: "unix:@<name>", or "tcp:<numeric host>:<port>" of the first host.
  std::string address() const { return addresses().front(); }
  /// One for each address that it listens on, in the order of the hosts.
  virtual const std::vector<std::string>& addresses() const = 0;
};

/// What to do while nobody serves a store: its launcher has ended, or its server begins a little
/// later.
enum class WhenAbsent : std::uint8_t { kFail, kWait };

/// Opens the store named by HVL_STORE: "unix:@<name>", or "tcp:<host>:<port>", where the host may
/// be a name. The connection is made per Join, so that nothing stays open between. `interrupted`
/// makes Join return Aborted; the rank has left the round then. A host that shows no sign of life
/// for `silence_limit` while its rank waits, or the store's, ends the wait (over TCP; zero: never).
Result<std::unique_ptr<Store>> OpenStore(const std::string& address, const Secret& secret,
                                         const std::string& job_id, Interrupted interrupted = {},
                                         WhenAbsent when_absent = WhenAbsent::kFail,
                                         Duration silence_limit = std::chrono::seconds(2));

}  // namespace hvl::net
