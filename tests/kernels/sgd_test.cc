#include "kernels/sgd.h"

#include "kernels/test_data.h"
#include "ullage/error.h"

namespace ullage::kernels {
namespace {

constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

std::vector<SgdStep> Steps() {
  SgdStep plain;
  plain.lr = 0.1;
  plain.gradient_factor = 0.37f;
  SgdStep decay = plain;
  decay.weight_decay = 0.1;
  SgdStep first = decay;
  first.momentum = 0.9;
  first.dampening = 0.3;
  SgdStep later = first;
  later.t = 2;
  SgdStep nesterov = later;
  nesterov.dampening = 0;
  nesterov.nesterov = true;
  SgdStep first_nesterov = nesterov;
  first_nesterov.t = 1;
  return {plain, decay, first, later, nesterov, first_nesterov};
}

TEST(Sgd, VectorsGiveTheBitsOfTheReference) {
  const Floats master = AnyFloats(kMany, 1), buffer = AnyFloats(kMany, 2);
  for (DType gradient_dtype : kTypes) {
    const Bytes gradient = As(gradient_dtype, AnyFloats(kMany, 3));
    for (const SgdStep& step : Steps()) {
      Floats expected_master = master, expected_buffer = buffer;
      Bytes expected_weight(2 * kMany);
      reference::Sgd(step, expected_master.data(), gradient_dtype, gradient.data(),
                     expected_buffer.data(), DType::kFloat16, expected_weight.data(), kMany);
      OnEveryTarget([&] {
        Floats actual_master = master, actual_buffer = buffer;
        Bytes weight(2 * kMany);
        Sgd(step, actual_master.data(), gradient_dtype, gradient.data(), actual_buffer.data(),
            DType::kFloat16, weight.data(), kMany);
        ExpectSameNumbers(actual_master, expected_master);
        ExpectSameNumbers(actual_buffer, expected_buffer);
        ExpectSameNumbers(DType::kFloat16, weight, expected_weight);
      });
    }
  }
}

TEST(Sgd, EveryTailAndEveryWeightType) {
  const Floats master = AnyFloats(kLongestTail + 1, 1), buffer = AnyFloats(kLongestTail + 1, 2);
  for (DType gradient_dtype : kTypes) {
    const Bytes gradient = As(gradient_dtype, AnyFloats(kLongestTail + 1, 3));
    for (DType weight_dtype : kTypes) {
      const Bytes weight = As(weight_dtype, Floats(kLongestTail + 1, -7.0f));
      for (const SgdStep& step : Steps()) {
        OnEveryTarget([&] {
          for (int64_t n = 0; n <= kLongestTail; ++n) {
            Floats expected_master = master, expected_buffer = buffer;
            Floats actual_master = master, actual_buffer = buffer;
            Bytes expected_weight = weight, actual_weight = weight;
            reference::Sgd(step, expected_master.data(), gradient_dtype, gradient.data(),
                           expected_buffer.data(), weight_dtype, expected_weight.data(), n);
            Sgd(step, actual_master.data(), gradient_dtype, gradient.data(), actual_buffer.data(),
                weight_dtype, actual_weight.data(), n);
            ExpectSameNumbers(actual_master, expected_master);
            ExpectSameNumbers(actual_buffer, expected_buffer);
            ExpectSameNumbers(weight_dtype, actual_weight, expected_weight);
          }
        });
      }
    }
  }
}

// One step on 20 equal elements; returns the last.
float One(const SgdStep& step, float p, float gradient, float* buffer) {
  Floats master(20, p), buffers(20, buffer != nullptr ? *buffer : 0.0f);
  const Floats gradients(20, gradient);
  Sgd(step, master.data(), DType::kFloat32, gradients.data(),
      buffer != nullptr ? buffers.data() : nullptr, DType::kFloat32, nullptr, 20);
  if (buffer != nullptr) *buffer = buffers.back();
  return master.back();
}

TEST(Sgd, WithoutMomentumNeedsNoBuffer) {
  OnEveryTarget([] {
    SgdStep step;
    step.lr = 0.5;
    EXPECT_EQ(One(step, 2, 3, nullptr), 0.5f);  // 2 - 0.5 * 3
    step.weight_decay = 0.25;
    EXPECT_EQ(One(step, 2, 3, nullptr), 0.25f);  // 2 - 0.5 * (3 + 0.25 * 2)
    step.gradient_factor = 0.5f;
    EXPECT_EQ(One(step, 2, 3, nullptr), 1.0f);  // 2 - 0.5 * (1.5 + 0.5)
  });
}

TEST(Sgd, FirstStepPutsTheGradientIntoTheBufferWhateverTheDampening) {
  OnEveryTarget([] {
    SgdStep step;
    step.lr = 0.5;
    step.momentum = 0.5;
    step.dampening = 0.75;
    float buffer = NAN;                         // what was there does not matter
    EXPECT_EQ(One(step, 2, 4, &buffer), 0.0f);  // 2 - 0.5 * 4
    EXPECT_EQ(buffer, 4.0f);
    step.t = 2;
    EXPECT_EQ(One(step, 0, 2, &buffer), -1.25f);  // b = 0.5 * 4 + 0.25 * 2
    EXPECT_EQ(buffer, 2.5f);
  });
}

TEST(Sgd, NesterovLooksAhead) {
  OnEveryTarget([] {
    SgdStep step;
    step.lr = 0.5;
    step.momentum = 0.5;
    step.nesterov = true;
    float buffer = 0;
    EXPECT_EQ(One(step, 2, 4, &buffer), -1.0f);  // b = 4, g = 4 + 0.5 * 4
    step.t = 2;
    EXPECT_EQ(One(step, -1, 2, &buffer), -3.0f);  // b = 0.5 * 4 + 2 = 4, g = 2 + 0.5 * 4
    EXPECT_EQ(buffer, 4.0f);
  });
}

TEST(Sgd, CanonicalClippedStep) {  // case C1: mean gradient [1, 2] clipped to norm 1
  Floats w = {1, -1};
  const Floats sum = {4, 8};  // over two ranks and two micro-steps
  SgdStep step;
  step.lr = 0.1;
  step.gradient_factor = static_cast<float>(1 / (4 * (std::sqrt(5.0) + 1e-6)));
  Sgd(step, w.data(), DType::kFloat32, sum.data(), nullptr, DType::kFloat32, nullptr, 2);
  EXPECT_NEAR(w[0], 0.9552787, 1e-6);
  EXPECT_NEAR(w[1], -1.0894427, 1e-6);
}

TEST(Sgd, CountsStepsFromOne) {
  SgdStep step;
  step.t = 0;
  EXPECT_THROW(One(step, 1, 1, nullptr), StateError);
}

}  // namespace
}  // namespace ullage::kernels
