// A descriptor that the launcher writes to without ever waiting for its reader.
#pragma once

#include <cstddef>
#include <string>

#include "launcher/backlog.h"

namespace hvl::launcher {

/// Does not own the descriptor and leaves its flags alone: other processes share them.
class Sink {
 public:
  explicit Sink(int fd);

  int fd() const { return fd_; }
  bool is_terminal() const { return is_terminal_; }
  /// Append here, then Flush().
  std::string* buffer() { return backlog_.buffer(); }
  std::size_t backlog_bytes() const { return backlog_.bytes(); }
  /// The errno that ended this sink, or 0. What is appended afterwards is dropped.
  int error() const { return backlog_.error(); }

  /// Drops everything, now and later; error() is ECANCELED.
  void Abandon();
  /// Writes as much as the reader takes at once.
  void Flush();

 private:
  bool Ready() const;

  const int fd_;
  bool is_terminal_ = false;
  bool may_block_ = true;  // a pipe, socket or terminal; not a file
  Backlog backlog_;
};

/// True when both descriptors lead to the same file, pipe or terminal.
bool SameFile(int a, int b);

}  // namespace hvl::launcher
