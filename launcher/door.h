// Where agents come in by themselves (`hvlrun --join`): takes connections, and lets in who knows
// the secret that head and agents share.
#pragma once

#include <functional>
#include <list>
#include <optional>
#include <string>

#include "csrc/net/handshake.h"
#include "csrc/net/secret.h"
#include "csrc/net/socket.h"
#include "horovodlite/status.h"
#include "launcher/env_block.h"
#include "launcher/poller.h"

namespace hvl::launcher {

/// What both ends of such a connection agree on.
net::LinkIdentity AgentIdentity();

/// From the file that HVL_SECRET_FILE names: at least 16 bytes, the same everywhere.
/// InvalidArgument says how to make one.
Result<net::Secret> ReadSharedSecret(const EnvBlock& env);

/// "host:port", "[IPv6]:port" or, where `default_host` is not "", "port".
Result<net::HostPort> ParseDoor(std::string_view option, const std::string& text,
                                const std::string& default_host);

class Door {
 public:
  using Admit = std::function<void(net::UniqueFd connection, const net::LinkKeys& keys)>;

  Door(Poller* poller, const net::Secret& secret, Admit admit)
      : poller_(poller), secret_(secret), admit_(std::move(admit)) {}
  ~Door();
  Door(const Door&) = delete;
  Door& operator=(const Door&) = delete;

  Status Open(const net::HostPort& place);
  const std::string& address() const { return listener_.address; }

  /// Tokens of the kinds kDoor and kGuest.
  void OnReady(Token token);
  std::optional<TimePoint> deadline() const;
  void OnTime(TimePoint now);

 private:
  struct Guest {
    std::uint32_t number = 0;
    net::UniqueFd connection;
    net::Handshake handshake;
    TimePoint give_up_at{};
  };

  void AcceptAll();
  void Drop(std::list<Guest>::iterator guest);

  Poller* const poller_;
  const net::Secret secret_;
  const Admit admit_;
  net::Listener listener_;
  std::list<Guest> guests_;  // oldest first
  std::uint32_t next_number_ = 0;
};

}  // namespace hvl::launcher
