#include "kernels/adamw.h"

#include "kernels/test_data.h"
#include "ullage/error.h"

namespace ullage::kernels {
namespace {

struct State {
  Weights weights;
  Floats exp_avg, exp_avg_sq;
};

State Fresh(const Floats& masters, DType dtype = DType::kFloat32) {
  return {Weights(dtype, masters), Floats(masters.size()), Floats(masters.size())};
}

using Kernel = decltype(&AdamW);

void Apply(Kernel kernel, const AdamWStep& step, DType gradient_dtype, const Bytes& gradient,
           State& state, int64_t n) {
  kernel(step, state.weights.Range(), gradient_dtype, gradient.data(), state.exp_avg.data(),
         state.exp_avg_sq.data(), n);
}

// One step with fp32 gradients.
void Apply(const AdamWStep& step, const Floats& gradient, State& state) {
  Apply(&AdamW, step, DType::kFloat32, As(DType::kFloat32, gradient), state, state.weights.size());
}

void ExpectSameState(const State& actual, const State& expected) {
  ExpectSameWeights(actual.weights, expected.weights);
  ExpectSameNumbers(actual.exp_avg, expected.exp_avg);
  ExpectSameNumbers(actual.exp_avg_sq, expected.exp_avg_sq);
}

State AnyState(int64_t n, DType dtype) {
  State state{Weights(dtype, AnyFloats(n, 1)), AnyFloats(n, 2), AnyFloats(n, 3)};
  for (float& value : state.exp_avg_sq) value = std::fabs(value);
  return state;
}

std::vector<AdamWStep> Steps() {
  AdamWStep plain;
  plain.lr = 0.01;
  plain.t = 3;
  AdamWStep decoupled = plain;
  decoupled.weight_decay = 0.1;
  decoupled.gradient_factor = 0.37f;
  AdamWStep l2 = decoupled;
  l2.decoupled = false;
  AdamWStep uncorrected = plain;
  uncorrected.bias_correction = false;
  return {plain, decoupled, l2, uncorrected};
}

TEST(AdamW, VectorsGiveTheBitsOfTheReference) {
  for (DType gradient_dtype : kTypes) {
    const Bytes gradient = As(gradient_dtype, AnyFloats(kMany, 4));
    const State start = AnyState(kMany, DType::kBFloat16);
    for (const AdamWStep& step : Steps()) {
      State expected = start;
      Apply(&reference::AdamW, step, gradient_dtype, gradient, expected, kMany);
      OnEveryTarget([&] {
        State actual = start;
        Apply(&AdamW, step, gradient_dtype, gradient, actual, kMany);
        ExpectSameState(actual, expected);
      });
    }
  }
}

TEST(AdamW, EveryTailAndEveryWeightType) {
  for (DType gradient_dtype : kTypes) {
    const Bytes gradient = As(gradient_dtype, AnyFloats(kLongestTail + 1, 4));
    for (DType weight_dtype : kTypes) {
      const State start = AnyState(kLongestTail + 1, weight_dtype);
      for (const AdamWStep& step : Steps()) {
        OnEveryTarget([&] {
          for (int64_t n = 0; n <= kLongestTail; ++n) {
            State expected = start, actual = start;
            Apply(&reference::AdamW, step, gradient_dtype, gradient, expected, n);
            Apply(&AdamW, step, gradient_dtype, gradient, actual, n);
            ExpectSameState(actual, expected);
          }
        });
      }
    }
  }
}

TEST(AdamW, SixteenBitWeightsAreUpdatedAsTheirMastersAlone) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    SCOPED_TRACE(Name(dtype));
    for (AdamWStep step : Steps()) {
      State masters = AnyState(10'000, DType::kFloat32);
      State weights = AnyState(10'000, dtype);
      for (step.t = 1; step.t <= 5; ++step.t) {
        const Bytes gradient =
            As(DType::kBFloat16, AnyFloats(10'000, 10 + static_cast<uint64_t>(step.t)));
        Apply(&AdamW, step, DType::kBFloat16, gradient, masters, 10'000);
        Apply(&AdamW, step, DType::kBFloat16, gradient, weights, 10'000);
        ExpectSameWeights(weights.weights, Weights(dtype, masters.weights.Masters()));
        ExpectSameNumbers(weights.exp_avg_sq, masters.exp_avg_sq);
      }
    }
  }
}

TEST(AdamW, SmallUpdatesOfABFloat16WeightAddUp) {
  State state = Fresh(Floats(20, 1.0f), DType::kBFloat16);
  AdamWStep step;
  step.lr = 0x1p-12;  // a sixteenth of the weight's last place below 1
  for (step.t = 1; step.t <= 256; ++step.t) Apply(step, Floats(20, 1.0f), state);
  for (float master : state.weights.Masters()) EXPECT_NEAR(master, 0.9375, 1e-5);
  ExpectSameNumbers(DType::kBFloat16, state.weights.weight,
                    As(DType::kBFloat16, Floats(20, 0.9375f)));
}

TEST(AdamW, FirstStepMovesByTheLearningRate) {  // case C9
  OnEveryTarget([] {
    for (float sign : {1.0f, -1.0f}) {
      State state = Fresh(Floats(20, sign));
      AdamWStep step;
      step.lr = 0.1;
      Apply(step, Floats(20, sign), state);
      for (float value : state.weights.Masters()) EXPECT_NEAR(value, sign * 0.9, 1e-7);
      EXPECT_NEAR(state.exp_avg[0], sign * 0.1, 1e-8);
      EXPECT_NEAR(state.exp_avg_sq[0], 0.001, 1e-9);
    }
  });
}

TEST(AdamW, ZeroGradientLeavesFreshParametersAlone) {  // case C4: `unused`
  for (DType dtype : kTypes) {
    const Floats start = NormalFloats(100, 1);
    State state = Fresh(start, dtype);
    AdamWStep step;
    for (step.t = 1; step.t <= 4; ++step.t) Apply(step, Floats(100), state);
    EXPECT_EQ(state.weights.Masters(), start);
  }
}

TEST(AdamW, FollowsTheFormulaInDouble) {
  constexpr int64_t kSize = 2000;
  constexpr int kCount = 10;
  for (bool decoupled : {true, false}) {
    for (bool bias_correction : {true, false}) {
      AdamWStep step;
      step.lr = 0.003;
      step.weight_decay = 0.05;
      step.decoupled = decoupled;
      step.bias_correction = bias_correction;
      step.gradient_factor = 0.25f;
      const Floats start = NormalFloats(kSize, 1);
      State state = Fresh(start);
      std::vector<double> p(start.begin(), start.end()), m(kSize), v(kSize);
      for (step.t = 1; step.t <= kCount; ++step.t) {
        const Floats gradient = NormalFloats(kSize, 100 + static_cast<uint64_t>(step.t));
        Apply(step, gradient, state);
        const double correction1 = bias_correction ? 1 - std::pow(0.9, step.t) : 1;
        const double correction2 = bias_correction ? 1 - std::pow(0.999, step.t) : 1;
        for (size_t i = 0; i < kSize; ++i) {
          double g = 0.25 * gradient[i];
          if (!decoupled) g += 0.05 * p[i];
          m[i] = 0.9 * m[i] + 0.1 * g;
          v[i] = 0.999 * v[i] + 0.001 * g * g;
          if (decoupled) p[i] -= 0.003 * 0.05 * p[i];
          p[i] -= 0.003 / correction1 * m[i] / (std::sqrt(v[i] / correction2) + 1e-8);
        }
      }
      const Floats masters = state.weights.Masters();
      for (size_t i = 0; i < kSize; ++i) {
        ASSERT_NEAR(masters[i], p[i], 1e-6 * std::max(1.0, std::fabs(p[i]))) << i;
        ASSERT_NEAR(state.exp_avg[i], m[i], 1e-6) << i;
        ASSERT_NEAR(state.exp_avg_sq[i], v[i], 1e-6) << i;
      }
    }
  }
}

TEST(AdamW, DecayComesBeforeTheUpdateOrGoesIntoTheGradient) {
  AdamWStep step;
  step.lr = 0.5;
  step.weight_decay = 0.25;
  State decoupled = Fresh(Floats(9, 2.0f));
  Apply(step, Floats(9), decoupled);
  EXPECT_EQ(decoupled.weights.Masters(), Floats(9, 1.75f));  // 2 - 0.5 * 0.25 * 2
  EXPECT_EQ(decoupled.exp_avg, Floats(9));

  step.decoupled = false;
  State l2 = Fresh(Floats(9, 2.0f));
  Apply(step, Floats(9), l2);
  EXPECT_NEAR(l2.weights.Masters()[8], 1.5, 1e-6);  // the first step has the length of lr
  EXPECT_NEAR(l2.exp_avg[8], 0.05, 1e-7);
}

TEST(AdamW, RangesMayBeSplitAnywhere) {
  // Nor must it matter that the step object is made anew, as in a resumed run.
  const Bytes gradient = As(DType::kFloat16, NormalFloats(1000, 5, 100));
  AdamWStep step;
  step.weight_decay = 0.01;
  step.t = 1234;
  for (DType dtype : kTypes) {
    State whole = AnyState(1000, dtype);
    State parts = whole;
    Apply(&AdamW, step, DType::kFloat16, gradient, whole, 1000);
    for (int64_t at = 0; at < 1000;) {
      const int64_t n = std::min<int64_t>(1000 - at, 1 + at % 37);
      AdamW(AdamWStep(step), Skip(parts.weights.Range(), at), DType::kFloat16,
            gradient.data() + 2 * at, parts.exp_avg.data() + at, parts.exp_avg_sq.data() + at, n);
      at += n;
    }
    ExpectSameState(parts, whole);
  }
}

TEST(AdamW, CountsStepsFromOne) {
  State state = Fresh(Floats(1, 1.0f));
  AdamWStep step;
  step.t = 0;
  EXPECT_THROW(Apply(step, Floats(1), state), StateError);
  EXPECT_EQ(state.weights.Masters()[0], 1.0f);
}

}  // namespace
}  // namespace ullage::kernels
