#include "base/bytes.h"

#include <gtest/gtest.h>

#include "ullage/error.h"

namespace ullage {
namespace {

TEST(Bytes, ReadsBinaryAndDecimalUnits) {
  EXPECT_EQ(ParseBytes("40GiB"), 40LL << 30);
  EXPECT_EQ(ParseBytes("200 GB"), 200'000'000'000);
  EXPECT_EQ(ParseBytes("38e9"), 38'000'000'000);
  EXPECT_EQ(ParseBytes("1.5kib"), 1536);
  EXPECT_EQ(ParseBytes("0"), 0);
}

TEST(Bytes, RefusesWhatIsNoByteCount) {
  for (const char* text : {"", "GiB", "-1", "1e30", "4 potatoes", "nan", "1e400"}) {
    EXPECT_THROW(ParseBytes(text), ConfigError) << text;
  }
}

TEST(Bytes, PrintsThreeDigits) {
  EXPECT_EQ(FormatBytes(512), "512 B");
  EXPECT_EQ(FormatBytes(46'881'792), "44.7 MiB");
  EXPECT_EQ(FormatBytes(1'342'177'280), "1.25 GiB");
  EXPECT_EQ(FormatBytes(1'048'575), "1.00 MiB");
}

}  // namespace
}  // namespace ullage
