#include "kernels/adamw.h"

#include "kernels/test_data.h"
#include "ullage/error.h"

namespace ullage::kernels {
namespace {

constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

struct State {
  Floats master, exp_avg, exp_avg_sq;
  Bytes weight;
};

using Kernel = decltype(&AdamW);

void Apply(Kernel kernel, const AdamWStep& step, DType gradient_dtype, const Bytes& gradient,
           DType weight_dtype, bool write_weight, State& state, int64_t n) {
  kernel(step, state.master.data(), gradient_dtype, gradient.data(), state.exp_avg.data(),
         state.exp_avg_sq.data(), weight_dtype, write_weight ? state.weight.data() : nullptr, n);
}

void ExpectSameState(DType weight_dtype, const State& actual, const State& expected) {
  ExpectSameNumbers(actual.master, expected.master);
  ExpectSameNumbers(actual.exp_avg, expected.exp_avg);
  ExpectSameNumbers(actual.exp_avg_sq, expected.exp_avg_sq);
  ExpectSameNumbers(weight_dtype, actual.weight, expected.weight);
}

State AnyState(int64_t n, DType weight_dtype) {
  State state{AnyFloats(n, 1), AnyFloats(n, 2), AnyFloats(n, 3), {}};
  for (float& value : state.exp_avg_sq) value = std::fabs(value);
  state.weight = As(weight_dtype, Floats(static_cast<size_t>(n), -7.0f));
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
      Apply(&reference::AdamW, step, gradient_dtype, gradient, DType::kBFloat16, true, expected,
            kMany);
      OnEveryTarget([&] {
        State actual = start;
        Apply(&AdamW, step, gradient_dtype, gradient, DType::kBFloat16, true, actual, kMany);
        ExpectSameState(DType::kBFloat16, actual, expected);
      });
    }
  }
}

TEST(AdamW, EveryTailAndEveryWeightType) {
  for (DType gradient_dtype : kTypes) {
    const Bytes gradient = As(gradient_dtype, AnyFloats(kLongestTail + 1, 4));
    for (DType weight_dtype : kTypes) {
      for (bool write_weight : {true, false}) {
        const State start = AnyState(kLongestTail + 1, weight_dtype);
        for (const AdamWStep& step : Steps()) {
          OnEveryTarget([&] {
            for (int64_t n = 0; n <= kLongestTail; ++n) {
              State expected = start, actual = start;
              Apply(&reference::AdamW, step, gradient_dtype, gradient, weight_dtype, write_weight,
                    expected, n);
              Apply(&AdamW, step, gradient_dtype, gradient, weight_dtype, write_weight, actual, n);
              ExpectSameState(weight_dtype, actual, expected);
            }
          });
        }
      }
    }
  }
}

TEST(AdamW, WrittenWeightIsTheRoundedMaster) {
  for (DType weight_dtype : kTypes) {
    State state{NormalFloats(1000, 1), Floats(1000), Floats(1000), {}};
    state.weight = As(weight_dtype, Floats(1000));
    const Bytes gradient = As(DType::kBFloat16, NormalFloats(1000, 2));
    Apply(&AdamW, AdamWStep{}, DType::kBFloat16, gradient, weight_dtype, true, state, 1000);
    ExpectSameNumbers(weight_dtype, state.weight, As(weight_dtype, state.master));
  }
}

TEST(AdamW, FirstStepMovesByTheLearningRate) {  // case C9
  OnEveryTarget([] {
    for (float sign : {1.0f, -1.0f}) {
      State state{Floats(20, sign), Floats(20), Floats(20), {}};
      AdamWStep step;
      step.lr = 0.1;
      const Bytes gradient = As(DType::kFloat32, Floats(20, sign));
      Apply(&AdamW, step, DType::kFloat32, gradient, DType::kFloat32, false, state, 20);
      for (float value : state.master) EXPECT_NEAR(value, sign * 0.9, 1e-7);
      EXPECT_NEAR(state.exp_avg[0], sign * 0.1, 1e-8);
      EXPECT_NEAR(state.exp_avg_sq[0], 0.001, 1e-9);
    }
  });
}

TEST(AdamW, ZeroGradientLeavesFreshParametersAlone) {  // case C4: `unused`
  const Floats start = NormalFloats(100, 1);
  State state{start, Floats(100), Floats(100), {}};
  const Bytes gradient = As(DType::kFloat32, Floats(100));
  AdamWStep step;
  for (step.t = 1; step.t <= 4; ++step.t) {
    Apply(&AdamW, step, DType::kFloat32, gradient, DType::kFloat32, false, state, 100);
  }
  EXPECT_EQ(state.master, start);
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
      State state{NormalFloats(kSize, 1), Floats(kSize), Floats(kSize), {}};
      std::vector<double> p(state.master.begin(), state.master.end()), m(kSize), v(kSize);
      for (step.t = 1; step.t <= kCount; ++step.t) {
        const Floats gradient = NormalFloats(kSize, 100 + static_cast<uint64_t>(step.t));
        Apply(&AdamW, step, DType::kFloat32, As(DType::kFloat32, gradient), DType::kFloat32, false,
              state, kSize);
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
      for (size_t i = 0; i < kSize; ++i) {
        ASSERT_NEAR(state.master[i], p[i], 1e-6 * std::max(1.0, std::fabs(p[i]))) << i;
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
  const Bytes zero = As(DType::kFloat32, Floats(9));
  State decoupled{Floats(9, 2.0f), Floats(9), Floats(9), {}};
  Apply(&AdamW, step, DType::kFloat32, zero, DType::kFloat32, false, decoupled, 9);
  EXPECT_EQ(decoupled.master, Floats(9, 1.75f));  // 2 - 0.5 * 0.25 * 2
  EXPECT_EQ(decoupled.exp_avg, Floats(9));

  step.decoupled = false;
  State l2{Floats(9, 2.0f), Floats(9), Floats(9), {}};
  Apply(&AdamW, step, DType::kFloat32, zero, DType::kFloat32, false, l2, 9);
  EXPECT_NEAR(l2.master[8], 1.5, 1e-6);  // the first step has the length of lr
  EXPECT_NEAR(l2.exp_avg[8], 0.05, 1e-7);
}

TEST(AdamW, ResumedRunEqualsUnbrokenRun) {
  // Splitting the range and making a new step object must not matter.
  const Bytes gradient = As(DType::kFloat16, NormalFloats(1000, 5, 100));
  AdamWStep step;
  step.weight_decay = 0.01;
  step.t = 1234;
  State whole = AnyState(1000, DType::kFloat16);
  State parts = whole;
  Apply(&AdamW, step, DType::kFloat16, gradient, DType::kFloat16, true, whole, 1000);
  for (int64_t at = 0; at < 1000;) {
    const int64_t n = std::min<int64_t>(1000 - at, 1 + at % 37);
    AdamW(AdamWStep(step), parts.master.data() + at, DType::kFloat16, gradient.data() + 2 * at,
          parts.exp_avg.data() + at, parts.exp_avg_sq.data() + at, DType::kFloat16,
          parts.weight.data() + 2 * at, n);
    at += n;
  }
  ExpectSameState(DType::kFloat16, parts, whole);
}

TEST(AdamW, CountsStepsFromOne) {
  State state{Floats(1, 1.0f), Floats(1), Floats(1), {}};
  AdamWStep step;
  step.t = 0;
  const Bytes gradient = As(DType::kFloat32, Floats(1));
  EXPECT_THROW(Apply(&AdamW, step, DType::kFloat32, gradient, DType::kFloat32, false, state, 1),
               StateError);
  EXPECT_EQ(state.master[0], 1.0f);
}

}  // namespace
}  // namespace ullage::kernels
