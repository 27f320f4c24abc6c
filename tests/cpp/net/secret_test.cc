#include "csrc/net/secret.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

#include "csrc/base/str.h"
#include "csrc/net/hmac.h"
#include "tests/support/temporary_file.h"

namespace hvl::net {

TEST_CASE("a secret passes through a sealed descriptor", "[secret]") {
  const Secret secret = Secret::Random();
  const auto fd = secret.ToSealedFd();
  REQUIRE(fd.ok());
  CHECK((::fcntl(fd->get(), F_GETFD) & FD_CLOEXEC) == 0);
  for (int i = 0; i < 2; ++i) CHECK(Secret::FromFd(fd->get())->key == secret.key);
  CHECK(Secret::Random().key != secret.key);
  const char byte = 0;
  CHECK(::pwrite(fd->get(), &byte, 1, 0) < 0);
  CHECK(::ftruncate(fd->get(), 0) < 0);
}

TEST_CASE("a descriptor that is not the secret is refused with the cure", "[secret]") {
  const auto message = [](int fd) {
    const auto secret = Secret::FromFd(fd);
    CHECK(secret.status().code() == StatusCode::kInvalidArgument);
    return secret.status().message();
  };
  CHECK_THAT(message(9999), Catch::Contains("it is closed") && Catch::Contains("wrapper"));
  CHECK_THAT(message(-1), Catch::Contains("it is closed"));
  const UniqueFd file(::open("/proc/self/status", O_RDONLY | O_CLOEXEC));
  CHECK_THAT(message(file.get()), Catch::Contains("not the launcher's memory"));
  const UniqueFd open_memory(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  CHECK_THAT(message(open_memory.get()), Catch::Contains("not sealed"));
  REQUIRE(::ftruncate(open_memory.get(), 31) == 0);
  REQUIRE(::fcntl(open_memory.get(), F_ADD_SEALS,
                  F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) == 0);
  CHECK_THAT(message(open_memory.get()), Catch::Contains("31 bytes instead of 32"));
}

TEST_CASE("HMAC-SHA256 agrees with RFC 4231", "[secret]") {
  // Test case 1 of the RFC has a key of 20 bytes; HMAC pads keys with zeros, so that ours of 32
  // bytes gives the same.
  Secret secret;
  std::fill_n(secret.key.begin(), 20, std::byte{0x0b});
  const std::string_view data = "Hi There";
  const Digest digest = HmacSha256(secret, std::as_bytes(std::span(data.data(), data.size())));
  std::string hex;
  for (const std::byte b : digest) hex += Format("{:02x}", static_cast<unsigned>(b));
  CHECK(hex == "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  Digest other = digest;
  CHECK(DigestsEqual(digest, other));
  other[31] ^= std::byte{1};
  CHECK_FALSE(DigestsEqual(digest, other));
}

TEST_CASE("a secret from a file is one that only its owner can read") {
  const test::TemporaryFile file;
  const auto write = [&file](const std::string& text, mode_t mode) {
    std::ofstream(file.path()) << text;
    REQUIRE(::chmod(file.path().c_str(), mode) == 0);
    return Secret::FromFile(file.path());
  };
  const auto secret = write("0123456789abcdef\n", 0600);
  REQUIRE(secret.ok());
  CHECK(write("0123456789abcdef", 0400)->key == secret->key);
  REQUIRE(::chmod(file.path().c_str(), 0600) == 0);
  CHECK(write("0123456789abcdeg", 0600)->key != secret->key);
  for (const mode_t mode : {0640, 0604, 0644}) {
    const Status open_file = write("0123456789abcdef", mode).status();
    CHECK(open_file.code() == StatusCode::kInvalidArgument);
    CHECK_THAT(open_file.message(), Catch::Contains(Format("mode is {:04o}", mode)));
  }
  CHECK_THAT(write("short", 0600).status().message(), Catch::Contains("5 bytes"));
  CHECK_THAT(Secret::FromFile("/no/such/file").status().message(), Catch::Contains("No such file"));
  CHECK_FALSE(Secret::FromFile("/dev/null").ok());
}

}  // namespace hvl::net
