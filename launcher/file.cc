#include "launcher/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <sstream>

#include "csrc/net/fd.h"

namespace hvl::launcher {
namespace {

constexpr std::size_t kMaxBytes = 16 << 20;

}  // namespace

std::optional<std::string> ReadFile(const std::string& path) {
  const net::UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return std::nullopt;
  std::string content;
  std::array<char, 16384> chunk{};
  for (;;) {
    const ssize_t count = ::read(file.get(), chunk.data(), chunk.size());
    if (count == 0) return content;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return std::nullopt;
    content.append(chunk.data(), static_cast<std::size_t>(count));
    if (content.size() <= kMaxBytes) continue;
    errno = EFBIG;
    return std::nullopt;
  }
}

std::optional<std::int64_t> ReadNumber(const std::string& path) {
  std::istringstream text(ReadFile(path).value_or(""));
  std::int64_t number = 0;
  if (text >> number) return number;
  return std::nullopt;
}

}  // namespace hvl::launcher
