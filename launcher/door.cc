#include "launcher/door.h"

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "csrc/base/str.h"
#include "csrc/net/bytes.h"
#include "csrc/net/hmac.h"
#include "launcher/agent_link.h"
#include "launcher/errors.h"
#include "launcher/file.h"

namespace hvl::launcher {
namespace {

constexpr std::size_t kMinSecretBytes = 16;
/// An IPv6 address as it stands before a port.
std::string WithBrackets(const std::string& host) {
  return host.find(':') == std::string::npos ? host : Format("[{}]", host);
}

constexpr std::string_view kHowToMake = "head -c 32 /dev/urandom | base64 > FILE; chmod 400 FILE";

}  // namespace

net::LinkIdentity AgentIdentity() {
  return {.job_id = "hvlrun agents",
          .generation = 0,
          .channel = net::Channel::kControl,
          .client_rank = 0,
          .server_rank = 0};
}

Result<net::Secret> ReadSharedSecret(const EnvBlock& env) {
  const std::string path(env.Get("HVL_SECRET_FILE").value_or(""));
  if (path.empty()) {
    return Invalid(
        Format("HVL_SECRET_FILE is not set: it names the file with the secret that "
               "hvlrun and its agents share. To make one: {}",
               kHowToMake));
  }
  std::optional<std::string> content = ReadFile(path);
  if (!content) {
    return Invalid(Format("cannot read HVL_SECRET_FILE={}: {}", path, ErrnoText(errno)));
  }
  // An editor or `echo` may have put a newline at the end, and not everywhere.
  while (!content->empty() && (content->back() == '\n' || content->back() == '\r')) {
    content->pop_back();
  }
  if (content->size() < kMinSecretBytes) {
    return Invalid(
        Format("HVL_SECRET_FILE={} has {} bytes, and a secret has at least {}. To make "
               "one: {}",
               path, content->size(), kMinSecretBytes, kHowToMake));
  }
  net::Secret secret;
  secret.key = net::HmacSha256(net::Secret(), net::AsBytes(*content));
  return secret;
}

Result<net::HostPort> ParseDoor(std::string_view option, const std::string& text,
                                const std::string& default_host) {
  const bool port_only = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  const std::string whole =
      port_only && !default_host.empty() ? WithBrackets(default_host) + ":" + text : text;
  // To listen at port 0 means any free one; nobody is found there.
  const bool any_port = !default_host.empty() && whole.ends_with(":0");
  Result<net::HostPort> place = net::ParseTcp("tcp:" + whole + (any_port ? "1" : ""));
  if (place.ok() && any_port) place->port = 0;
  if (place.ok()) return place;
  return Invalid(Format("{} '{}' is not valid: expected {}", option, text,
                        default_host.empty() ? "host:port" : "address:port or a port"));
}

Door::~Door() {
  while (!guests_.empty()) Drop(guests_.begin());
  if (listener_.socket.valid()) poller_->Forget(listener_.socket.get());
}

Status Door::Open(const net::HostPort& place) {
  HVL_ASSIGN_OR_RETURN(const std::vector<net::SocketAddress> addresses, net::LookUp(place));
  HVL_ASSIGN_OR_RETURN(listener_, net::ListenAt(addresses.front()));
  if (!listener_.socket.valid()) {
    return Invalid(Format("--listen: port {} is in use at {}", place.port, place.host));
  }
  if (poller_->WatchReadable(listener_.socket.get(), {Token::Kind::kDoor, 0})) return Status::Ok();
  return {StatusCode::kResourceExhausted, "the door for agents cannot be watched"};
}

void Door::OnReady(Token token) {
  if (token.kind == Token::Kind::kDoor) return AcceptAll();
  const auto guest = std::find_if(guests_.begin(), guests_.end(),
                                  [token](const Guest& g) { return g.number == token.index; });
  if (guest == guests_.end()) return;
  const Status status = guest->handshake.Advance(guest->connection.get());
  if (!status.ok()) return Drop(guest);
  if (!guest->handshake.done()) return;
  poller_->Forget(guest->connection.get());
  net::UniqueFd connection = std::move(guest->connection);
  const net::LinkKeys keys = guest->handshake.Keys();
  guests_.erase(guest);
  admit_(std::move(connection), keys);
}

void Door::AcceptAll() {
  for (;;) {
    Result<net::UniqueFd> connection = net::Accept(listener_.socket.get(), net::Transport::kTcp);
    if (!connection.ok() || !connection->valid()) return;
    if (guests_.size() == net::kMaxHalfOpen) Drop(guests_.begin());
    guests_.push_back({.number = next_number_++,
                       .connection = std::move(*connection),
                       .handshake = net::Handshake::Accept(AgentIdentity(), secret_),
                       .give_up_at = SteadyClock().Now() + net::kHandshakeTimeout});
    const Guest& guest = guests_.back();
    if (!poller_->WatchReadable(guest.connection.get(), {Token::Kind::kGuest, guest.number})) {
      guests_.pop_back();
    }
  }
}

void Door::Drop(std::list<Guest>::iterator guest) {
  poller_->Forget(guest->connection.get());
  guests_.erase(guest);
}

std::optional<TimePoint> Door::deadline() const {
  return guests_.empty() ? std::nullopt : std::optional(guests_.front().give_up_at);
}

void Door::OnTime(TimePoint now) {
  while (!guests_.empty() && now >= guests_.front().give_up_at) Drop(guests_.begin());
}

}  // namespace hvl::launcher
