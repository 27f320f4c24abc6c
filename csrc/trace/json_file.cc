#include "csrc/trace/json_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "csrc/base/check.h"
#include "csrc/base/errno_text.h"
#include "csrc/base/str.h"

namespace hvl::trace {
namespace {

constexpr std::string_view kClosing = "\n]\n";
constexpr std::string_view kSeparator = ",\n";

/// Two bytes at any address, written by one instruction.
struct [[gnu::packed]] TwoBytes {
  volatile std::uint16_t value;
};

}  // namespace

Result<JsonArrayFile> JsonArrayFile::Create(const std::string& path, std::string_view first) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  JsonArrayFile file(path, fd);
  if (fd < 0) return file.Error("open");
  file.pending_ = Format("[\n{}", first);
  HVL_CHECK(file.pending_.size() <= kMaxElementBytes, "the first element is too long");
  HVL_RETURN_IF_ERROR(file.Flush());
  return file;
}

JsonArrayFile::JsonArrayFile(JsonArrayFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      tail_(other.tail_),
      pending_(std::move(other.pending_)) {}

JsonArrayFile::~JsonArrayFile() {
  if (fd_ >= 0) ::close(fd_);
}

std::size_t JsonArrayFile::SpaceInBlock() const {
  return kBlockBytes - static_cast<std::size_t>(tail_) % kBlockBytes;
}

Status JsonArrayFile::Append(std::string_view element) {
  HVL_CHECK(element.size() <= kMaxElementBytes, Format("element of {} bytes", element.size()));
  const std::size_t needed = kSeparator.size() + element.size() + kClosing.size();
  if (pending_.size() + needed > SpaceInBlock()) {
    HVL_RETURN_IF_ERROR(Flush());
    HVL_RETURN_IF_ERROR(EnterNextBlock());
  }
  pending_ += kSeparator;
  pending_ += element;
  return Status::Ok();
}

Status JsonArrayFile::Flush() {
  if (pending_.empty()) return Status::Ok();
  HVL_RETURN_IF_ERROR(WriteAt(tail_, Format("{}{}", pending_, kClosing)));
  tail_ += static_cast<off_t>(pending_.size());
  pending_.clear();
  return Status::Ok();
}

Status JsonArrayFile::EnterNextBlock() {
  const std::size_t space = SpaceInBlock();
  const off_t border = tail_ + static_cast<off_t>(space);
  HVL_RETURN_IF_ERROR(WriteAt(tail_, Format("{:>{}}", ']', space)));
  // Blanks after the closing bracket are allowed; this one reserves the place of the next.
  HVL_RETURN_IF_ERROR(WriteAt(border, "\n"));
  HVL_RETURN_IF_ERROR(MoveBracketOver(border));
  tail_ = border;
  return Status::Ok();
}

Status JsonArrayFile::MoveBracketOver(off_t border) {
  const auto page_bytes = static_cast<off_t>(::sysconf(_SC_PAGESIZE));
  const off_t start = (border - 1) / page_bytes * page_bytes;
  const auto length = static_cast<std::size_t>(border + 1 - start);
  void* map = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, start);
  // A file system without shared mappings: here a kill could hit between the two bytes.
  if (map == MAP_FAILED) return WriteAt(border - 1, " ]");
  std::uint16_t blank_and_bracket = 0;
  std::memcpy(&blank_and_bracket, " ]", sizeof(blank_and_bracket));
  auto* last_byte = static_cast<char*>(map) + (border - 1 - start);
  reinterpret_cast<TwoBytes*>(last_byte)->value = blank_and_bracket;
  if (::munmap(map, length) != 0) return Error("unmap");
  return Status::Ok();
}

Status JsonArrayFile::Close() {
  Status flushed = Flush();
  if (::close(std::exchange(fd_, -1)) != 0 && flushed.ok()) return Error("close");
  return flushed;
}

Status JsonArrayFile::WriteAt(off_t offset, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::pwrite(fd_, text.data(), text.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Error("write");
    text.remove_prefix(static_cast<std::size_t>(written));
    offset += written;
  }
  return Status::Ok();
}

Status JsonArrayFile::Error(std::string_view what) const {
  return {StatusCode::kUnavailable,
          Format("cannot {} timeline file '{}': {}", what, path_, ErrnoText(errno))};
}

}  // namespace hvl::trace
