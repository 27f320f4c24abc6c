#include "csrc/net/secret.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>

#include "csrc/base/check.h"
#include "csrc/base/errno_text.h"
#include "csrc/base/str.h"
#include "csrc/net/hmac.h"
#include "csrc/net/socket.h"

namespace hvl::net {
namespace {

constexpr int kSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

Status BadSecretFd(int fd, const std::string& found) {
  return {StatusCode::kInvalidArgument,
          Format("cannot read the job secret from descriptor {} (HVL_SECRET_FD): {}. hvlrun opens "
                 "this descriptor for the processes it starts; a wrapper that closes inherited "
                 "descriptors (sudo, subprocess with close_fds=True, some container entry points) "
                 "loses it. Start the script without such a wrapper, or put hvlrun inside it",
                 fd, found)};
}

}  // namespace

Secret::~Secret() { Wipe(key); }

Secret Secret::Random() {
  Secret secret;
  FillRandom(secret.key);
  return secret;
}

Result<Secret> Secret::FromFd(int fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0) {
    return BadSecretFd(fd, errno == EBADF ? "it is closed" : "it is not the launcher's memory");
  }
  if ((seals & kSeals) != kSeals) return BadSecretFd(fd, "it is not sealed");
  Secret secret;
  // One byte more than expected, to notice a longer file.
  std::array<std::byte, 33> bytes{};
  const ssize_t got = ::pread(fd, bytes.data(), bytes.size(), 0);
  if (got != static_cast<ssize_t>(secret.key.size()))
    return BadSecretFd(fd, Format("it holds {} bytes instead of {}", got, secret.key.size()));
  std::copy_n(bytes.begin(), secret.key.size(), secret.key.begin());
  Wipe(bytes);
  return secret;
}

Result<Secret> Secret::FromFile(const std::string& path) {
  const auto bad = [&path](const std::string& what) {
    return Status(
        StatusCode::kInvalidArgument,
        Format("cannot use '{}' as the job's secret (HVL_SECRET_FILE): {}. Make one with "
               "'umask 077; head -c 32 /dev/urandom > FILE', and give every host the same",
               path, what));
  };
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat facts{};
  if (!file.valid() || ::fstat(file.get(), &facts) != 0) return bad(ErrnoText(errno));
  if (!S_ISREG(facts.st_mode)) return bad("it is no regular file");
  if ((facts.st_mode & 077) != 0)
    return bad(Format("its mode is {:04o}; only its owner may read it (chmod 600)",
                      facts.st_mode & 07777));
  std::array<std::byte, 4096> bytes{};
  const ssize_t got = ::pread(file.get(), bytes.data(), bytes.size(), 0);
  std::span<const std::byte> content =
      std::span<const std::byte>(bytes).first(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  // Editors and `openssl rand -hex` end a file with a line feed.
  while (!content.empty() && content.back() == std::byte{'\n'})
    content = content.first(content.size() - 1);
  if (content.size() < 16)
    return bad(Format("it holds {} bytes; at least 16 are needed", content.size()));
  Secret secret;
  secret.key = HmacSha256(Secret(), content);
  Wipe(bytes);
  return secret;
}

Result<UniqueFd> Secret::ToSealedFd() const {
  UniqueFd fd(::memfd_create("hvl-secret", MFD_ALLOW_SEALING));
  if (!fd.valid()) return ErrnoStatus("cannot create memory for the job secret");
  if (::write(fd.get(), key.data(), key.size()) != static_cast<ssize_t>(key.size()))
    return ErrnoStatus("cannot write the job secret");
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return ErrnoStatus("cannot seal the job secret");
  return fd;
}

void Wipe(std::span<std::byte> bytes) { OPENSSL_cleanse(bytes.data(), bytes.size()); }

void FillRandom(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::getrandom(bytes.data(), bytes.size(), 0);
    HVL_CHECK(got > 0 || errno == EINTR, Format("getrandom failed: errno {}", errno));
    if (got > 0) bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
}

std::string RandomName() {
  std::array<std::byte, 16> bits{};
  FillRandom(bits);
  std::string name;
  for (const std::byte bit : bits) name += Format("{:02x}", static_cast<unsigned>(bit));
  return name;
}

}  // namespace hvl::net
