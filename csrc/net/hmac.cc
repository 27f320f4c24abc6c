#include "csrc/net/hmac.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "csrc/base/check.h"

namespace hvl::net {
namespace {

// Neither a configuration file of the machine nor the process's exit order may touch our HMAC.
bool InitOpenSsl() {
  return OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, nullptr) == 1;
}

}  // namespace

Digest HmacSha256(const Secret& secret, std::span<const std::byte> message) {
  static const bool initialised = InitOpenSsl();
  HVL_CHECK(initialised, "OpenSSL did not start");
  Digest digest{};
  std::size_t digest_bytes = 0;
  const unsigned char* done =
      EVP_Q_mac(nullptr, "HMAC", nullptr, "SHA256", nullptr, secret.key.data(), secret.key.size(),
                reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                reinterpret_cast<unsigned char*>(digest.data()), digest.size(), &digest_bytes);
  HVL_CHECK(done != nullptr && digest_bytes == digest.size(), "OpenSSL has no HMAC-SHA256");
  return digest;
}

bool DigestsEqual(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace hvl::net
