// The optimizers on the device give the bits of the host's plain reference.
#include "kernels/device.h"

#include "kernels/device_data.h"
#include "kernels/scalar_cast.h"
#include "ullage/error.h"

namespace ullage::kernels {
namespace {

std::vector<AdamWStep> AdamWSteps() {
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
  return {decoupled, plain, l2, uncorrected};
}

struct AdamWData {
  AdamWData(DType weight_dtype, DType type, int64_t n)
      : weights(weight_dtype, AnyFloats(n, 1)),
        exp_avg(AnyFloats(n, 2)),
        exp_avg_sq(AnyFloats(n, 3)),
        gradient_dtype(type),
        gradient(As(type, AnyFloats(n, 4))) {
    for (float& value : exp_avg_sq) value = std::fabs(value);
  }

  Weights weights;
  Floats exp_avg, exp_avg_sq;
  DType gradient_dtype;
  Bytes gradient;
};

void ExpectSameAdamW(const AdamWStep& step, const AdamWData& data, const Part& part) {
  SCOPED_TRACE(Describe(part));
  const DeviceWeights weights(data.weights);
  const DeviceArray<float> exp_avg(data.exp_avg), exp_avg_sq(data.exp_avg_sq);
  const DeviceArray<std::byte> gradient(data.gradient);
  device::AdamW(step, Skip(weights.Range(), part.begin), data.gradient_dtype,
                At(data.gradient_dtype, gradient.data(), part.begin), exp_avg.data() + part.begin,
                exp_avg_sq.data() + part.begin, part.count, nullptr);
  AdamWData expected = data;
  reference::AdamW(step, Skip(expected.weights.Range(), part.begin), data.gradient_dtype,
                   At(data.gradient_dtype, expected.gradient.data(), part.begin),
                   expected.exp_avg.data() + part.begin, expected.exp_avg_sq.data() + part.begin,
                   part.count);
  ExpectSameWeights(weights.Host(), expected.weights);
  ExpectSameNumbers(exp_avg.Host(), expected.exp_avg);
  ExpectSameNumbers(exp_avg_sq.Host(), expected.exp_avg_sq);
}

TEST(DeviceAdamW, TenMillionElementsOfEveryTypeHaveTheBitsOfTheHost) {
  for (DType weight : kTypes) {
    for (DType gradient : kTypes) {
      SCOPED_TRACE(std::string(Name(weight)) + " weights, gradients " +
                   std::string(Name(gradient)));
      const AdamWData data(weight, gradient, kTenMillion);
      ExpectSameAdamW(AdamWSteps().front(), data, {0, kTenMillion});
    }
  }
}

TEST(DeviceAdamW, EveryKindOfStepAndAwkwardParts) {
  for (DType weight : kTypes) {
    for (DType gradient : kTypes) {
      SCOPED_TRACE(std::string(Name(weight)) + " weights, gradients " +
                   std::string(Name(gradient)));
      const AdamWData data(weight, gradient, 5000);
      for (const AdamWStep& step : AdamWSteps()) ExpectSameAdamW(step, data, {0, 5000});
      for (const Part& part : AwkwardParts()) ExpectSameAdamW(AdamWSteps()[0], data, part);
    }
  }
}

TEST(DeviceAdamW, CountsStepsFromOne) {
  AdamWStep step;
  step.t = 0;
  EXPECT_THROW(device::AdamW(step, {}, DType::kFloat32, nullptr, nullptr, nullptr, 0, nullptr),
               StateError);
}

std::vector<SgdStep> SgdSteps() {
  SgdStep plain;
  plain.lr = 0.1;
  plain.gradient_factor = 0.37f;
  SgdStep first = plain;
  first.weight_decay = 0.1;
  first.momentum = 0.9;
  first.dampening = 0.3;
  SgdStep later = first;
  later.t = 2;
  SgdStep nesterov = later;
  nesterov.dampening = 0;
  nesterov.nesterov = true;
  return {later, plain, first, nesterov};
}

void ExpectSameSgd(const SgdStep& step, const AdamWData& data, const Part& part) {
  SCOPED_TRACE(Describe(part));
  const DeviceWeights weights(data.weights);
  const DeviceArray<float> buffer(data.exp_avg);
  const DeviceArray<std::byte> gradient(data.gradient);
  const bool momentum = step.momentum != 0;
  device::Sgd(step, Skip(weights.Range(), part.begin), data.gradient_dtype,
              At(data.gradient_dtype, gradient.data(), part.begin),
              momentum ? buffer.data() + part.begin : nullptr, part.count, nullptr);
  AdamWData expected = data;
  reference::Sgd(step, Skip(expected.weights.Range(), part.begin), data.gradient_dtype,
                 At(data.gradient_dtype, expected.gradient.data(), part.begin),
                 momentum ? expected.exp_avg.data() + part.begin : nullptr, part.count);
  ExpectSameWeights(weights.Host(), expected.weights);
  ExpectSameNumbers(buffer.Host(), expected.exp_avg);
}

TEST(DeviceSgd, EveryTypeStepAndPartHasTheBitsOfTheHost) {
  for (DType weight : kTypes) {
    for (DType gradient : kTypes) {
      SCOPED_TRACE(std::string(Name(weight)) + " weights, gradients " +
                   std::string(Name(gradient)));
      const AdamWData data(weight, gradient, 200'001);
      for (const SgdStep& step : SgdSteps()) ExpectSameSgd(step, data, {0, 200'001});
      const AdamWData few(weight, gradient, 5000);
      for (const Part& part : AwkwardParts()) ExpectSameSgd(SgdSteps()[0], few, part);
    }
  }
}

TEST(DeviceSgd, CountsStepsFromOne) {
  SgdStep step;
  step.t = 0;
  EXPECT_THROW(device::Sgd(step, {}, DType::kFloat32, nullptr, nullptr, 0, nullptr), StateError);
}

}  // namespace
}  // namespace ullage::kernels
