// The job secret: 32 random bytes that every process of a job knows. Never in argv, logs or the
// environment.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "csrc/net/fd.h"
#include "horovodlite/status.h"

namespace hvl::net {

struct Secret {
  std::array<std::byte, 32> key{};

  Secret() = default;
  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret();  ///< wipes the key

  static Secret Random();
  /// Reads a descriptor made by ToSealedFd (position does not matter; the descriptor stays open).
  static Result<Secret> FromFd(int fd);
  /// From the bytes of a file (at least 16) that nobody but its owner may read; InvalidArgument
  /// says what is wrong with it.
  static Result<Secret> FromFile(const std::string& path);
  /// A sealed memfd, not close-on-exec, for children to inherit (HVL_SECRET_FD).
  Result<UniqueFd> ToSealedFd() const;
};

/// Overwrites bytes of a secret, also where a compiler sees that nobody reads them again.
void Wipe(std::span<std::byte> bytes);
/// Fills `bytes` from the kernel's random generator.
void FillRandom(std::span<std::byte> bytes);
/// 128 random bits as hexadecimal text.
std::string RandomName();

}  // namespace hvl::net
