// What a step takes, from the work of a dry run: by hand for single kernels, and by what has to
// follow for whole jobs.
#include "planner/step_time.h"

#include <gtest/gtest.h>

#include "memory/work_log.h"

namespace ullage::planner {
namespace {

using memory::Phase;
using memory::Traffic;
using memory::WorkLog;
using torchx::OperatorWork;

// Round numbers, so that times can be told by hand.
MachineRates Rates() {
  MachineRates rates;
  rates.product16 = 1e12;
  rates.product32 = 1e11;
  rates.flash = {2e12, 1e12};
  rates.efficient16 = {5e11, 5e11};
  rates.efficient32 = {1e11, 1e11};
  rates.memory = 1e9;
  rates.cache = 2e9;
  rates.update = 1e9;
  rates.copies = 1e8;
  rates.peers = 1e8;
  rates.host_update = 1e8;
  rates.host_sums = 1e8;
  rates.host_norm = 1e8;
  rates.disk = 1e7;
  rates.kernel = 1e-3;
  rates.call = 1e-2;
  return rates;
}

OperatorWork Product(c10::ScalarType type) {
  OperatorWork work;
  work.kind = OperatorWork::Kind::kProduct;
  work.type = type;
  work.batch = 2;
  work.rows = 1000;
  work.inner = 1000;
  work.columns = 500;
  return work;
}

TEST(KernelSeconds, AreTheLongerOfOperationsAndBytes) {
  OperatorWork product = Product(c10::ScalarType::BFloat16);
  EXPECT_DOUBLE_EQ(KernelSeconds(product, Rates()), 1e-3 + 2e9 / 1e12);
  product.type = c10::ScalarType::Float;
  EXPECT_DOUBLE_EQ(KernelSeconds(product, Rates()), 1e-3 + 2e9 / 1e11);
  product.bytes = 1'000'000'000;
  EXPECT_DOUBLE_EQ(KernelSeconds(product, Rates()), 1e-3 + 1);
  OperatorWork pass;
  pass.bytes = 1'000'000;  // in the cache
  EXPECT_DOUBLE_EQ(KernelSeconds(pass, Rates()), 1e-3 + 5e-4);
}

TEST(KernelSeconds, OfAttentionKnowItsKind) {
  OperatorWork work;
  work.type = c10::ScalarType::BFloat16;
  work.batch = 16;
  work.rows = work.columns = 4096;
  work.inner = 128;
  const auto seconds = [&](OperatorWork::Kind kind) {
    work.kind = kind;
    return KernelSeconds(work, Rates());
  };
  const double squares = 16.0 * 4096 * 4096 * 128;
  EXPECT_NEAR(seconds(OperatorWork::Kind::kFlash), 4 * squares / 2e12, 1e-4);
  EXPECT_NEAR(seconds(OperatorWork::Kind::kFlashGradient), 10 * squares / 1e12, 1e-4);
  EXPECT_GT(seconds(OperatorWork::Kind::kEfficient), seconds(OperatorWork::Kind::kFlash));
  const double whole = seconds(OperatorWork::Kind::kFlash);
  work.is_causal = true;
  EXPECT_LT(seconds(OperatorWork::Kind::kFlash), 0.7 * whole);
  work.has_dropout = true;
  EXPECT_GT(seconds(OperatorWork::Kind::kFlash), 0.7 * whole);
}

// One micro-step: a product of 3 ms forward, two of them backward, an update of 1 s.
void LogStep(WorkLog& log) {
  log.Enter(Phase::kForward);
  log.Worked(Product(c10::ScalarType::BFloat16));
  log.Enter(Phase::kIdle);
  log.Enter(Phase::kBackward);
  log.Worked(Product(c10::ScalarType::BFloat16));
  log.Worked(Product(c10::ScalarType::BFloat16));
  log.Enter(Phase::kStep);
  log.Passed(Traffic::kUpdate, 1'000'000'000);
  log.Enter(Phase::kIdle);
}

TEST(EstimateStep, CountsEachMicroStepAndOneUpdate) {
  WorkLog log(nullptr);
  LogStep(log);
  const StepTime once = EstimateStep(log, 1, 1, /*is_recorded=*/true, Rates());
  EXPECT_DOUBLE_EQ(once.forward, 3e-3);
  EXPECT_DOUBLE_EQ(once.backward, 6e-3);
  EXPECT_NEAR(once.step, 1, 1e-2);
  EXPECT_EQ(once.bound, "operators");
  const StepTime ten = EstimateStep(log, 1, 10, /*is_recorded=*/true, Rates());
  EXPECT_DOUBLE_EQ(ten.forward, 30e-3);
  EXPECT_DOUBLE_EQ(ten.backward, 60e-3);
  EXPECT_DOUBLE_EQ(ten.step, once.step);
  // The same of a log of two steps.
  LogStep(log);
  EXPECT_DOUBLE_EQ(EstimateStep(log, 2, 10, true, Rates()).total(), ten.total());
}

TEST(EstimateStep, WaitsForTheSlowestOfWhatGoesOnAtOnce) {
  WorkLog log(nullptr);
  LogStep(log);
  log.Enter(Phase::kBackward);
  log.Passed(Traffic::kDown, 100'000'000);
  log.Enter(Phase::kStep);
  log.Passed(Traffic::kHostUpdate, 1'000'000'000);
  log.Enter(Phase::kIdle);
  const StepTime time = EstimateStep(log, 1, 2, true, Rates());
  EXPECT_DOUBLE_EQ(time.backward, 2.0);
  // The first forward waits for the update, the second for nothing.
  EXPECT_NEAR(time.forward, 10 + 3e-3, 2e-2);
  EXPECT_EQ(time.bound, "the host");
}

}  // namespace
}  // namespace ullage::planner
