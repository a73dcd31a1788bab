// SHA-256 of a stream of bytes, for parameters_sha256 and for naming the files a run came from.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX

namespace ullage {

// Feed bytes in any pieces, then ask once for the digest. OpenSSL's implementation: it uses the
// processor's SHA instructions, and parameters are gigabytes. One thread at a time. Throws
// UnsupportedError when OpenSSL refuses to give SHA-256, StateError when used after HexDigest().
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void Update(const void* data, std::size_t bytes);

  // 64 lower-case hexadecimal digits. Ends the stream.
  std::string HexDigest();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  std::unique_ptr<evp_md_ctx_st, Free> context_;  // null after HexDigest()
};

}  // namespace ullage
