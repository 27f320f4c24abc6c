// Bytes on their way into a descriptor whose reader takes them when it likes.
#pragma once

#include <cstddef>
#include <string>

namespace hvl::launcher {

class Backlog {
 public:
  /// Append here, then Write().
  std::string* buffer() { return &buffer_; }
  std::size_t bytes() const { return buffer_.size() - written_; }
  /// The errno that ended it, or 0. What is appended afterwards is dropped.
  int error() const { return error_; }

  /// Writes at most `most` bytes. False when another call would do no good now: nothing is left,
  /// the reader takes no more, or an error has ended it.
  bool Write(int fd, std::size_t most);
  /// Drops everything, now and later.
  void End(int error);

 private:
  void CutOff();

  std::string buffer_;
  std::size_t written_ = 0;  // of the buffer's beginning; cut off now and then, not at each write
  int error_ = 0;
};

}  // namespace hvl::launcher
