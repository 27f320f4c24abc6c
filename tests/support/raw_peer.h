// The other end of a connection, under the full control of a test: says what it is told, whether
// that makes sense or not.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <array>
#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "csrc/net/fd.h"
#include "csrc/net/handshake.h"
#include "tests/support/ranks.h"

namespace hvl::test {

class RawPeer {
 public:
  explicit RawPeer(net::UniqueFd socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }
  void Close() { socket_.Reset(); }

  /// Writes all of it; false when the other side has gone.
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0 && (errno != EAGAIN || !WaitFor(POLLOUT))) return false;
      if (sent > 0) bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  /// The next `size` bytes, or fewer at the end of the stream.
  std::string Read(std::size_t size) {
    std::string bytes(size, '\0');
    std::size_t have = 0;
    while (have < size) {
      const ssize_t got = ::recv(fd(), bytes.data() + have, size - have, 0);
      if (got == 0 || (got < 0 && (errno != EAGAIN || !WaitFor(POLLIN)))) break;
      if (got > 0) have += static_cast<std::size_t>(got);
    }
    bytes.resize(have);
    return bytes;
  }
  std::string ReadToEnd() { return Read(1 << 20); }

  /// Completes a hand-shake; false when it fails.
  bool Prove(net::Handshake handshake) {
    if (!WaitFor(POLLOUT)) return false;
    while (handshake.Advance(fd()).ok()) {
      if (handshake.done()) return true;
      if (!WaitFor(POLLIN)) return false;
    }
    return false;
  }

 private:
  bool WaitFor(short events) {
    pollfd polled{fd(), events, 0};
    return ::poll(&polled, 1, static_cast<int>(std::chrono::milliseconds(kHangLimit).count())) == 1;
  }

  net::UniqueFd socket_;
};

}  // namespace hvl::test
