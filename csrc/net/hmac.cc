#include "csrc/net/hmac.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include "csrc/base/check.h"

namespace hvl::net {
namespace {

// Neither a configuration file of the machine nor the process's exit order may touch our HMAC.
bool InitOpenSsl() {
  return OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, nullptr) == 1;
}

void StartOpenSsl() {
  static const bool initialised = InitOpenSsl();
  HVL_CHECK(initialised, "OpenSSL did not start");
}

}  // namespace

Digest HmacSha256(const Secret& secret, std::span<const std::byte> message) {
  StartOpenSsl();
  Digest digest{};
  std::size_t digest_bytes = 0;
  const unsigned char* done =
      EVP_Q_mac(nullptr, "HMAC", nullptr, "SHA256", nullptr, secret.key.data(), secret.key.size(),
                reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                reinterpret_cast<unsigned char*>(digest.data()), digest.size(), &digest_bytes);
  HVL_CHECK(done != nullptr && digest_bytes == digest.size(), "OpenSSL has no HMAC-SHA256");
  return digest;
}

void Mac::Free::operator()(EVP_MAC_CTX* context) const { EVP_MAC_CTX_free(context); }

Mac::Mac(const Secret& key) {
  StartOpenSsl();
  EVP_MAC* const algorithm = EVP_MAC_fetch(nullptr, "HMAC", nullptr);
  HVL_CHECK(algorithm != nullptr, "OpenSSL has no HMAC");
  context_.reset(EVP_MAC_CTX_new(algorithm));
  EVP_MAC_free(algorithm);  // the context holds it
  std::array<char, 7> name{"SHA256"};
  const std::array<OSSL_PARAM, 2> parameters{
      OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, name.data(), 0),
      OSSL_PARAM_construct_end()};
  const int done =
      EVP_MAC_init(context_.get(), reinterpret_cast<const unsigned char*>(key.key.data()),
                   key.key.size(), parameters.data());
  HVL_CHECK(done == 1, "OpenSSL has no HMAC-SHA256");
}

Digest Mac::operator()(std::initializer_list<std::span<const std::byte>> message) {
  // Without a key: begins anew with the one that is set.
  int done = EVP_MAC_init(context_.get(), nullptr, 0, nullptr);
  for (const std::span<const std::byte> part : message) {
    done &= EVP_MAC_update(context_.get(), reinterpret_cast<const unsigned char*>(part.data()),
                           part.size());
  }
  Digest digest{};
  std::size_t digest_bytes = 0;
  done &= EVP_MAC_final(context_.get(), reinterpret_cast<unsigned char*>(digest.data()),
                        &digest_bytes, digest.size());
  HVL_CHECK(done == 1 && digest_bytes == digest.size(), "OpenSSL failed to make an HMAC");
  return digest;
}

bool DigestsEqual(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace hvl::net
