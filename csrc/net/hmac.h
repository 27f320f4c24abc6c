// HMAC-SHA256 (RFC 2104) of the hand-shake, by OpenSSL.
#pragma once

#include <openssl/types.h>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>

#include "csrc/net/secret.h"

namespace hvl::net {

using Digest = std::array<std::byte, 32>;

/// Any thread.
Digest HmacSha256(const Secret& secret, std::span<const std::byte> message);
/// The same under one key again and again, without setting it up each time. One thread at a time.
class Mac {
 public:
  explicit Mac(const Secret& key);
  /// Of the parts, one after the other.
  Digest operator()(std::initializer_list<std::span<const std::byte>> message);

 private:
  struct Free {
    void operator()(EVP_MAC_CTX* context) const;
  };
  std::unique_ptr<EVP_MAC_CTX, Free> context_;
};

/// Takes the same time wherever the digests differ.
bool DigestsEqual(std::span<const std::byte> a, std::span<const std::byte> b);

}  // namespace hvl::net
