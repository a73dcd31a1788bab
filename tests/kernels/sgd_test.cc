#include "kernels/sgd.h"

#include "kernels/test_data.h"
#include "ullage/error.h"

namespace ullage::kernels {
namespace {

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
  const Weights weights(DType::kBFloat16, AnyFloats(kMany, 1));
  const Floats buffer = AnyFloats(kMany, 2);
  for (DType gradient_dtype : kTypes) {
    const Bytes gradient = As(gradient_dtype, AnyFloats(kMany, 3));
    for (const SgdStep& step : Steps()) {
      Weights expected = weights;
      Floats expected_buffer = buffer;
      reference::Sgd(step, expected.Range(), gradient_dtype, gradient.data(),
                     expected_buffer.data(), kMany);
      OnEveryTarget([&] {
        Weights actual = weights;
        Floats actual_buffer = buffer;
        Sgd(step, actual.Range(), gradient_dtype, gradient.data(), actual_buffer.data(), kMany);
        ExpectSameWeights(actual, expected);
        ExpectSameNumbers(actual_buffer, expected_buffer);
      });
    }
  }
}

TEST(Sgd, EveryTailAndEveryWeightType) {
  const Floats masters = AnyFloats(kLongestTail + 1, 1), buffer = AnyFloats(kLongestTail + 1, 2);
  for (DType gradient_dtype : kTypes) {
    const Bytes gradient = As(gradient_dtype, AnyFloats(kLongestTail + 1, 3));
    for (DType weight_dtype : kTypes) {
      const Weights weights(weight_dtype, masters);
      for (const SgdStep& step : Steps()) {
        OnEveryTarget([&] {
          for (int64_t n = 0; n <= kLongestTail; ++n) {
            Weights expected = weights, actual = weights;
            Floats expected_buffer = buffer, actual_buffer = buffer;
            reference::Sgd(step, expected.Range(), gradient_dtype, gradient.data(),
                           expected_buffer.data(), n);
            Sgd(step, actual.Range(), gradient_dtype, gradient.data(), actual_buffer.data(), n);
            ExpectSameWeights(actual, expected);
            ExpectSameNumbers(actual_buffer, expected_buffer);
          }
        });
      }
    }
  }
}

TEST(Sgd, SixteenBitWeightsAreUpdatedAsTheirMastersAlone) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    SCOPED_TRACE(Name(dtype));
    for (const SgdStep& step : Steps()) {
      Weights masters(DType::kFloat32, AnyFloats(10'000, 1)), weights(dtype, masters.Masters());
      Floats buffer = AnyFloats(10'000, 2), masters_buffer = buffer;
      for (uint64_t t = 0; t < 3; ++t) {
        const Floats gradient = AnyFloats(10'000, 10 + t);
        Sgd(step, masters.Range(), DType::kFloat32, gradient.data(), masters_buffer.data(), 10'000);
        Sgd(step, weights.Range(), DType::kFloat32, gradient.data(), buffer.data(), 10'000);
        ExpectSameWeights(weights, Weights(dtype, masters.Masters()));
      }
    }
  }
}

// One step on 20 equal elements; returns the last.
float One(const SgdStep& step, float p, float gradient, float* buffer) {
  Weights weights(DType::kFloat32, Floats(20, p));
  Floats buffers(20, buffer != nullptr ? *buffer : 0.0f);
  const Floats gradients(20, gradient);
  Sgd(step, weights.Range(), DType::kFloat32, gradients.data(),
      buffer != nullptr ? buffers.data() : nullptr, 20);
  if (buffer != nullptr) *buffer = buffers.back();
  return weights.Masters().back();
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
  Sgd(step, {DType::kFloat32, w.data(), nullptr}, DType::kFloat32, sum.data(), nullptr, 2);
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
