#include "launcher/sink.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

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
  while (backlog_bytes() > 0 && (error() != 0 || Ready()) && backlog_.Write(fd_, most)) {
  }
}

void Sink::Abandon() { backlog_.End(ECANCELED); }

bool SameFile(int a, int b) {
  struct stat first{};
  struct stat second{};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace hvl::launcher
