#include "launcher/backlog.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace hvl::launcher {

bool Backlog::Write(int fd, std::size_t most) {
  if (error_ != 0) End(error_);
  if (bytes() == 0) return false;
  const ssize_t count = ::write(fd, buffer_.data() + written_, std::min(most, bytes()));
  if (count < 0 && errno == EINTR) return true;
  if (count < 0 && errno == EAGAIN) return false;
  if (count < 0) {
    End(errno);
    return false;
  }
  written_ += static_cast<std::size_t>(count);
  if (written_ * 2 >= buffer_.size()) CutOff();
  return bytes() > 0;
}

void Backlog::End(int error) {
  error_ = error;
  written_ = buffer_.size();
  CutOff();
}

void Backlog::CutOff() {
  buffer_.erase(0, written_);
  written_ = 0;
}

}  // namespace hvl::launcher
