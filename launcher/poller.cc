#include "launcher/poller.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>

#include "csrc/base/check.h"
#include "csrc/base/str.h"
#include "launcher/errors.h"

namespace hvl::launcher {
namespace {

constexpr int kMaxEvents = 256;

std::uint64_t Pack(Token token) {
  return (static_cast<std::uint64_t>(token.kind) << 32) | token.index;
}

Token Unpack(std::uint64_t data) {
  return {.kind = static_cast<Token::Kind>(data >> 32),
          .index = static_cast<std::uint32_t>(data & 0xFFFFFFFFU)};
}

/// Milliseconds for epoll_wait: rounded up, or the loop would spin through the last one.
int TimeoutMs(std::optional<TimePoint> deadline) {
  if (!deadline) return -1;
  const Duration left = *deadline - SteadyClock().Now();
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<std::int64_t>(ms, 0, INT_MAX));
}

}  // namespace

Result<Poller> Poller::Create() {
  net::UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) {
    return Status(StatusCode::kResourceExhausted, Format("epoll: {}", ErrnoText(errno)));
  }
  return Poller(std::move(epoll));
}

bool Poller::Watch(int fd, std::uint32_t events, Token token) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = Pack(token);
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return true;
  HVL_CHECK(errno == EPERM || errno == ENOMEM || errno == ENOSPC, ErrnoText(errno));
  return false;
}

bool Poller::WatchReadable(int fd, Token token) { return Watch(fd, EPOLLIN, token); }
bool Poller::WatchWritable(int fd, Token token) { return Watch(fd, EPOLLOUT, token); }

void Poller::Forget(int fd) { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

std::vector<Token> Poller::Wait(std::optional<TimePoint> deadline) {
  std::array<epoll_event, kMaxEvents> events{};
  const int count = ::epoll_wait(epoll_.get(), events.data(), kMaxEvents, TimeoutMs(deadline));
  HVL_CHECK(count >= 0 || errno == EINTR, ErrnoText(errno));
  std::vector<Token> ready;
  for (int i = 0; i < count; ++i)
    ready.push_back(Unpack(events.at(static_cast<std::size_t>(i)).data.u64));
  return ready;
}

}  // namespace hvl::launcher
