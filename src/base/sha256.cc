#include "base/sha256.h"

#include <array>

#include <openssl/evp.h>

#include "ullage/error.h"

namespace ullage {

void Sha256::Free::operator()(evp_md_ctx_st* context) const {
  EVP_MD_CTX_free(context);
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  if (!context_ || EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) != 1) {
    throw UnsupportedError("OpenSSL gives no SHA-256",
                           "check the OpenSSL configuration of this machine (OPENSSL_CONF)");
  }
}

Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::Update(const void* data, std::size_t bytes) {
  if (!context_) throw StateError("Sha256 is used after its digest was taken", "make a new one");
  if (EVP_DigestUpdate(context_.get(), data, bytes) != 1) {
    throw StateError("OpenSSL failed to take bytes into a SHA-256");
  }
}

std::string Sha256::HexDigest() {
  if (!context_) throw StateError("Sha256 is used after its digest was taken", "make a new one");
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int size = 0;
  if (EVP_DigestFinal_ex(context_.get(), digest.data(), &size) != 1) {
    throw StateError("OpenSSL failed to end a SHA-256");
  }
  context_.reset();
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (unsigned int i = 0; i < size; ++i) {
    text += kDigits[digest[i] >> 4];
    text += kDigits[digest[i] & 15];
  }
  return text;
}

}  // namespace ullage
