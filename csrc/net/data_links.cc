#include "csrc/net/data_links.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/rank_text.h"
#include "csrc/base/str.h"
#include "csrc/net/address.h"

namespace hvl::net {
namespace {

// A receiver may take nothing for as long as another operation keeps it busy, which is no fault.
// That a host is dead is noticed in seconds by the control links; this is the second line, where
// the system's own would be a quarter of an hour.
constexpr unsigned kUntakenDataMs = 300'000;
// Between ranks of one machine, which have no delay to fill: a sender goes on to its next peer
// while what it has written is still in the caches, from which the receiver takes it. The kernel
// doubles the number and would let the buffer grow to megabytes. See docs/data-planes.md.
constexpr int kNearSendBytes = 128 << 10;

template <typename T>
Status SetDataOption(int socket, int level, int name, const T& value) {
  if (::setsockopt(socket, level, name, &value, sizeof value) == 0) return Status::Ok();
  return ErrnoStatus("cannot set an option of a data connection");
}

// Whether both ends have the same address, so that nothing leaves the machine.
bool IsOnLoopback(int socket) {
  SocketAddress own, peer;
  own.bytes = peer.bytes = sizeof own.storage;
  if (::getsockname(socket, own.get(), &own.bytes) != 0) return false;
  if (::getpeername(socket, peer.get(), &peer.bytes) != 0) return false;
  return NumericHost(own) == NumericHost(peer);
}

}  // namespace

DataLinks::DataLinks(DataPlan plan, Logger logger)
    : logger_(std::move(logger)),
      timeout_(plan.timeout),
      owner_pid_(::getpid()),
      sockets_(plan.addresses.size()),
      maker_({.rank = plan.rank,
              .job_id = std::move(plan.job_id),
              .generation = plan.generation,
              .channel = Channel::kData,
              .secret = plan.secret,
              .listener = std::move(plan.listener),
              .addresses = std::move(plan.addresses),
              .noun = "data connection"},
             *this, logger_) {}

DataLinks::~DataLinks() {
  if (::getpid() != owner_pid_) return;  // a forked child only closes its copies
  // Such a child may hold them for long; this ends the connections all the same.
  for (const UniqueFd& socket : sockets_)
    if (socket.valid()) ::shutdown(socket.get(), SHUT_RDWR);
}

Status DataLinks::Connect(std::span<const int> peers, int stop_event) {
  const TimePoint deadline = SteadyClock().Now() + timeout_;
  const pollfd stop{stop_event, POLLIN, 0};
  for (const int peer : peers) {
    HVL_CHECK(peer >= 0 && peer < size() && peer != rank(),
              Format("rank {} of {} connects to rank {}", rank(), size(), peer));
    if (peer < rank() && !Connected(peer)) maker_.Dial(peer);
  }
  while (!std::ranges::all_of(peers, [this](int peer) { return Connected(peer); })) {
    if (SteadyClock().Now() >= deadline) return TimedOut(peers);
    HVL_RETURN_IF_ERROR(maker_.Turn({&stop, 1}, deadline));
    if (maker_.Ready(stop_event)) return {StatusCode::kAborted, "told to stop while connecting"};
  }
  return Status::Ok();
}

Status DataLinks::Take(int peer, UniqueFd socket, const Handshake&) {
  HVL_RETURN_IF_ERROR(SetDataOption(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, kUntakenDataMs));
  if (IsOnLoopback(socket.get()))
    HVL_RETURN_IF_ERROR(SetDataOption(socket.get(), SOL_SOCKET, SO_SNDBUF, kNearSendBytes));
  sockets_[static_cast<std::size_t>(peer)] = std::move(socket);
  if (++connected_ + 1 == size()) maker_.StopListening();
  return Status::Ok();
}

Status DataLinks::TimedOut(std::span<const int> peers) const {
  std::vector<int> missing;
  for (const int peer : peers)
    if (!Connected(peer)) missing.push_back(peer);
  std::ranges::sort(missing);
  const auto seconds = std::chrono::duration<double>(timeout_).count();
  return {StatusCode::kTimeout,
          Format("rank {} got no data connection with {} in {:.3g} s{}. If the ranks are alive, "
                 "look whether a firewall between their hosts lets TCP connections to any port "
                 "through; HVL_START_TIMEOUT allows more time",
                 rank(), RanksText(missing), seconds, maker_.LastFailure()),
          missing.front()};
}

}  // namespace hvl::net
