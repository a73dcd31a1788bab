#include "ullage/error.h"

#include <gtest/gtest.h>

TEST(Error, EndsInItsHint) {
  const ullage::ConfigError error("zero_optimization.stage: 4", "use 0 to 3");
  EXPECT_STREQ(error.what(), "zero_optimization.stage: 4\nhint: use 0 to 3");
}

TEST(Error, IsCaughtAsItsBase) {
  EXPECT_THROW(throw ullage::IoError("no such file"), ullage::Error);
}
