// A JSON array on disk that is complete at every moment, also for whoever finds it after kill -9.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "horovodlite/status.h"

namespace hvl::trace {

/// A kill can stop a write between two pages, never inside one. So every write stays inside one
/// block of kBlockBytes, in which it replaces the closing bracket by elements and a new bracket.
/// When a block is full, the bracket first goes to its last byte (blanks before it), and from there
/// over the border by one store instruction of two bytes, blank and bracket, into a mapping of the
/// file: an instruction is executed whole or not at all.
///
/// Cost: one system call per block, and four more and a page fault for each border. Not
/// thread-safe. After an error nothing more may be written.
class JsonArrayFile {
 public:
  static constexpr std::size_t kBlockBytes = 4096;
  /// An element, with what separates and closes, has to fit into a block.
  static constexpr std::size_t kMaxElementBytes = kBlockBytes - 8;

  /// Creates or empties the file and writes an array of the one element `first` (JSON text).
  static Result<JsonArrayFile> Create(const std::string& path, std::string_view first);

  JsonArrayFile(const JsonArrayFile&) = delete;
  JsonArrayFile& operator=(const JsonArrayFile&) = delete;
  JsonArrayFile(JsonArrayFile&& other) noexcept;
  JsonArrayFile& operator=(JsonArrayFile&&) = delete;
  ~JsonArrayFile();

  /// Adds an element of at most kMaxElementBytes; in the file after Flush at the latest.
  /// Unavailable with path and reason on failure.
  Status Append(std::string_view element);
  Status Flush();

  /// Flushes. Unavailable also when the file system reports an earlier write as failed.
  Status Close();

 private:
  JsonArrayFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  std::size_t SpaceInBlock() const;
  Status EnterNextBlock();
  Status MoveBracketOver(off_t border);
  Status WriteAt(off_t offset, std::string_view text);
  Status Error(std::string_view what) const;

  std::string path_;
  int fd_;
  off_t tail_ = 0;       // where the closing bracket's text begins
  std::string pending_;  // goes to tail_; fits into the block together with a closing bracket
};

}  // namespace hvl::trace
