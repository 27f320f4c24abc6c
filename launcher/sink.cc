#include "launcher/sink.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace hvl::launcher {
namespace {

// A pipe that poll() calls writable has room for this much.
constexpr std::size_t kMaxWriteBytes = PIPE_BUF;
constexpr std::size_t kMaxFileWriteBytes = 1 << 20;

}  // namespace

Sink::Sink(int fd) : fd_(fd), is_terminal_(::isatty(fd) == 1) {
  struct stat info{};
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) may_block_ = false;
}

bool Sink::Ready() const {
  if (!may_block_) return true;
  pollfd entry{.fd = fd_, .events = POLLOUT, .revents = 0};
  return ::poll(&entry, 1, 0) == 1;  // with an error pending, write() reports it
}

void Sink::Flush() {
  const std::size_t most = may_block_ ? kMaxWriteBytes : kMaxFileWriteBytes;
  while (error_ == 0 && backlog_bytes() > 0 && Ready()) {
    const std::size_t length = std::min(most, backlog_bytes());
    const ssize_t count = ::write(fd_, buffer_.data() + written_, length);
    if (count >= 0) {
      written_ += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      error_ = errno;
    }
  }
  if (error_ != 0) written_ = buffer_.size();
  if (written_ * 2 < buffer_.size()) return;
  buffer_.erase(0, written_);
  written_ = 0;
}

void Sink::Abandon() {
  error_ = ECANCELED;
  Flush();
}

bool SameFile(int a, int b) {
  struct stat first{};
  struct stat second{};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace hvl::launcher
