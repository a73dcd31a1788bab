#include "kernels/targets.h"

#include <gtest/gtest.h>

#include "ullage/error.h"

namespace ullage::kernels {
namespace {

TEST(Targets, BestIsInUseUnlessAnotherIsChosen) {
  const auto targets = SupportedTargets();
  ASSERT_FALSE(targets.empty());
  EXPECT_EQ(TargetName(), targets.front());
  for (const std::string& target : targets) {
    UseTarget(target);
    EXPECT_EQ(TargetName(), target);
    EXPECT_EQ(SupportedTargets(), targets);
  }
  UseTarget("");
  EXPECT_EQ(TargetName(), targets.front());
}

#if defined(__x86_64__) && !defined(__FMA__)
TEST(Targets, PlainReferenceIsAmongThem) {
  EXPECT_EQ(SupportedTargets().back(), "plain");
}

TEST(Targets, CpuWithFusedMultiplyAddUsesVectors) {
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    EXPECT_TRUE(SupportedTargets().front().starts_with("AVX")) << SupportedTargets().front();
  } else {
    EXPECT_EQ(SupportedTargets().front(), "plain");
  }
}
#endif

TEST(Targets, UnknownNameIsRefused) {
  EXPECT_THROW(UseTarget("MMX"), UnsupportedError);
  EXPECT_EQ(TargetName(), SupportedTargets().front());
}

}  // namespace
}  // namespace ullage::kernels
