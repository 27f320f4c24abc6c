// HMAC-SHA256 (RFC 2104) of the hand-shake, by OpenSSL.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "csrc/net/secret.h"

namespace hvl::net {

using Digest = std::array<std::byte, 32>;

/// Any thread.
Digest HmacSha256(const Secret& secret, std::span<const std::byte> message);
/// Takes the same time wherever the digests differ.
bool DigestsEqual(std::span<const std::byte> a, std::span<const std::byte> b);

}  // namespace hvl::net
