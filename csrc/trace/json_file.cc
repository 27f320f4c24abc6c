#include "csrc/trace/json_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "csrc/base/str.h"

namespace hvl::trace {
namespace {
constexpr std::string_view kClosing = "\n]\n";
}  // namespace

Result<JsonArrayFile> JsonArrayFile::Create(const std::string& path, std::string_view first) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  JsonArrayFile file(path, fd);
  if (fd < 0) return file.Error("open");
  HVL_RETURN_IF_ERROR(file.WriteAtTail(Format("[\n{}", first)));
  return file;
}

JsonArrayFile::JsonArrayFile(JsonArrayFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), tail_(other.tail_) {}

JsonArrayFile::~JsonArrayFile() {
  if (fd_ >= 0) ::close(fd_);
}

Status JsonArrayFile::Append(std::string_view elements) { return WriteAtTail(elements); }

Status JsonArrayFile::Close() {
  if (::close(std::exchange(fd_, -1)) != 0) return Error("close");
  return Status::Ok();
}

Status JsonArrayFile::WriteAtTail(std::string_view text) {
  const std::string block = Format("{}{}", text, kClosing);
  for (std::size_t done = 0; done < block.size();) {
    const ssize_t written =
        ::pwrite(fd_, block.data() + done, block.size() - done, tail_ + static_cast<off_t>(done));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Error("write");
    done += static_cast<std::size_t>(written);
  }
  tail_ += static_cast<off_t>(text.size());
  return Status::Ok();
}

Status JsonArrayFile::Error(std::string_view what) const {
  return {StatusCode::kUnavailable, Format("cannot {} timeline file '{}': {}", what, path_,
                                           std::strerror(errno))};  // NOLINT(concurrency-mt-unsafe)
}

}  // namespace hvl::trace
