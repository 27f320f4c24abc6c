// A JSON array on disk that is complete after every write.
#pragma once

#include <string>
#include <string_view>

#include "horovodlite/status.h"

namespace hvl::trace {

class JsonArrayFile {
 public:
  /// Creates or empties the file and writes an array of the one element `first` (JSON text).
  static Result<JsonArrayFile> Create(const std::string& path, std::string_view first);

  JsonArrayFile(JsonArrayFile&& other) noexcept;
  JsonArrayFile& operator=(JsonArrayFile&&) = delete;
  ~JsonArrayFile();

  /// Appends elements, each preceded by ",\n". One system call overwrites the closing bracket with
  /// them and a new one. Unavailable with path and reason on failure.
  Status Append(std::string_view elements);

  /// Unavailable when the file system reports an earlier write as failed.
  Status Close();

 private:
  JsonArrayFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  Status WriteAtTail(std::string_view text);
  Status Error(std::string_view what) const;

  std::string path_;
  int fd_;
  off_t tail_ = 0;  // where the closing bracket stands
};

}  // namespace hvl::trace
