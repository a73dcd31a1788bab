#include "base/sha256.h"

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "ullage/error.h"

namespace ullage {
namespace {

std::string Digest(const std::string& text) {
  Sha256 sha;
  sha.Update(text.data(), text.size());
  return sha.HexDigest();
}

TEST(Sha256, AgreesWithTheStandardsExamples) {  // FIPS 180-2, appendix B
  EXPECT_EQ(Digest(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Digest("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Digest(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DoesNotDependOnThePieces) {
  const std::string text(10'000, 'x');
  for (std::size_t piece : {1, 63, 64, 65, 4096}) {
    Sha256 sha;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      sha.Update(text.data() + at, std::min(piece, text.size() - at));
    }
    EXPECT_EQ(sha.HexDigest(), Digest(text)) << piece;
  }
}

TEST(Sha256, RefusesUseAfterTheDigest) {
  Sha256 sha;
  sha.HexDigest();
  EXPECT_THROW(sha.Update("a", 1), StateError);
  EXPECT_THROW(sha.HexDigest(), StateError);
}

}  // namespace
}  // namespace ullage
