// A man in the middle: passes the bytes of TCP connections on to where they were meant to go, and
// does to them what a test says.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <functional>
#include <list>
#include <string>
#include <thread>
#include <utility>

#include "csrc/net/fd.h"
#include "csrc/net/socket.h"

namespace hvl::test {

class TcpProxy {
 public:
  /// Sees each chunk of bytes before it is passed on (`to_server`: which way), and may change it;
  /// `offset` counts the bytes of this direction of the connection. False: cut the connection.
  using Tamper = std::function<bool(bool to_server, std::size_t offset, std::string& bytes)>;

  explicit TcpProxy(std::string target, Tamper tamper = nullptr)
      : target_(std::move(target)),
        tamper_(std::move(tamper)),
        listener_(net::Listen(net::Transport::kTcp).value()),
        thread_([this] { Serve(); }) {}
  ~TcpProxy() {
    stop_.store(true);
    thread_.join();
  }
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  const std::string& address() const { return listener_.address; }
  /// From now on nothing passes and nothing is closed: a cable is pulled.
  void Freeze() { frozen_.store(true); }
  /// Ends all connections, without a goodbye of those who speak over them.
  void Cut() { cut_.store(true); }

 private:
  struct Way {
    net::UniqueFd client, server;
    std::array<std::size_t, 2> offsets{};  // by direction
  };

  void Serve() {
    while (!stop_.load()) {
      if (cut_.load()) ways_.clear();
      std::vector<pollfd> polled{{listener_.socket.get(), POLLIN, 0}};
      for (const Way& way : ways_) {
        polled.push_back({way.client.get(), POLLIN, 0});
        polled.push_back({way.server.get(), POLLIN, 0});
      }
      const bool frozen = frozen_.load();
      // Short, because the test's flags ring no bell.
      ::poll(polled.data(), frozen ? 0 : polled.size(), 2);
      if (frozen || cut_.load()) continue;
      std::size_t index = 1;
      std::erase_if(ways_, [&](Way& way) {
        const bool from_client = polled[index].revents != 0;
        const bool from_server = polled[index + 1].revents != 0;
        index += 2;
        return (from_client && !Pass(way, true)) || (from_server && !Pass(way, false));
      });
      Accept();
    }
  }

  void Accept() {
    auto client = net::Accept(listener_.socket.get(), net::Transport::kTcp);
    if (!client.ok() || !client->valid()) return;
    auto server = net::StartConnect(target_);
    if (!server.ok() || !server->valid()) return;
    pollfd connected{server->get(), POLLOUT, 0};
    ::poll(&connected, 1, 10'000);
    ways_.push_back({std::move(*client), std::move(*server)});
  }

  bool Pass(Way& way, bool to_server) {
    std::string bytes(64 << 10, '\0');
    const int from = to_server ? way.client.get() : way.server.get();
    const ssize_t got = ::recv(from, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    bytes.resize(static_cast<std::size_t>(got));
    std::size_t& offset = way.offsets[to_server ? 1 : 0];
    const std::size_t begin = std::exchange(offset, offset + bytes.size());
    if (tamper_ && !tamper_(to_server, begin, bytes)) return false;
    const int to = to_server ? way.server.get() : way.client.get();
    for (std::string_view rest = bytes; !rest.empty();) {
      const ssize_t sent = ::send(to, rest.data(), rest.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN) return false;
      if (sent > 0) rest.remove_prefix(static_cast<std::size_t>(sent));
      if (stop_.load()) return false;
    }
    return true;
  }

  const std::string target_;
  const Tamper tamper_;
  const net::Listener listener_;
  std::list<Way> ways_;
  std::atomic<bool> stop_ = false, frozen_ = false, cut_ = false;
  std::thread thread_;
};

}  // namespace hvl::test
