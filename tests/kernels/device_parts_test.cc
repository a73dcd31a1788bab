// Many ranges in few launches give the bits of one after the other.
#include <utility>

#include "kernels/accumulate.h"
#include "kernels/device.h"
#include "kernels/device_data.h"
#include "kernels/scalar_cast.h"
#include "ullage/error.h"

namespace ullage::kernels {
namespace {

// Ranges of one array of 400'000 elements, with gaps, of every length from 1 to 300 and some
// larger; most begin at multiples of 64 elements as the optimizer's do, others anywhere.
std::vector<Part> ManyParts() {
  std::vector<Part> parts;
  int64_t begin = 0;
  for (int64_t count = 1; count <= 300; ++count) {
    parts.push_back({begin, count});
    begin += count + 1;
    if (count % 5 != 0) begin = (begin + 63) / 64 * 64;
  }
  for (const int64_t count : {2048, 2049, 5000, 65'536, 100'000}) {
    parts.push_back({begin, count});
    begin = (begin + count + 64) / 64 * 64;
  }
  return parts;
}
constexpr int64_t kNumel = 400'000;

AdamWStep StepOfGroup(int group) {
  AdamWStep step;
  step.lr = 0.01 * (group + 1);
  step.weight_decay = group % 2 == 0 ? 0.1 : 0;
  step.gradient_factor = 0.37f;
  step.t = 3;
  return step;
}

struct State {
  State(DType weight_dtype, DType type)
      : weights(weight_dtype, AnyFloats(kNumel, 1)),
        first(AnyFloats(kNumel, 2)),
        second(AnyFloats(kNumel, 3)),
        gradient_dtype(type),
        gradient(As(type, AnyFloats(kNumel, 4))) {
    for (float& value : second) value = std::fabs(value);
  }
  Weights weights;
  Floats first, second;
  DType gradient_dtype;
  Bytes gradient;
};

struct OnDevice {
  explicit OnDevice(const State& state)
      : weights(state.weights),
        first(state.first),
        second(state.second),
        gradient(state.gradient) {}

  UpdatePart Of(const State& state, const Part& part, int step) const {
    return {step,
            Skip(weights.Range(), part.begin),
            state.gradient_dtype,
            At(state.gradient_dtype, gradient.data(), part.begin),
            first.data() + part.begin,
            second.data() + part.begin,
            part.count};
  }
  void ExpectSame(const State& expected) const {
    ExpectSameWeights(weights.Host(), expected.weights);
    ExpectSameNumbers(first.Host(), expected.first);
    ExpectSameNumbers(second.Host(), expected.second);
  }

  DeviceWeights weights;
  DeviceArray<float> first, second;
  DeviceArray<std::byte> gradient;
};

// With more groups than one launch takes steps, and more parts than one launch takes.
TEST(DeviceParts, AdamWOfManyRangesAndGroupsIsThatOfEach) {
  for (DType weight : kTypes) {
    for (DType gradient : kTypes) {
      SCOPED_TRACE(std::string(Name(weight)) + " weights, gradients " +
                   std::string(Name(gradient)));
      const State data(weight, gradient);
      const OnDevice device_state(data);
      State expected = data;
      std::vector<AdamWStep> steps;
      for (int group = 0; group < 11; ++group) steps.push_back(StepOfGroup(group));
      std::vector<UpdatePart> parts;
      for (const Part& part : ManyParts()) {
        const int group = static_cast<int>(parts.size()) % 11;
        parts.push_back(device_state.Of(data, part, group));
        reference::AdamW(
            steps[static_cast<std::size_t>(group)], Skip(expected.weights.Range(), part.begin),
            gradient, At(gradient, expected.gradient.data(), part.begin),
            expected.first.data() + part.begin, expected.second.data() + part.begin, part.count);
      }
      device::AdamW(steps, parts, nullptr);
      device_state.ExpectSame(expected);
    }
  }
}

TEST(DeviceParts, SgdOfManyRangesIsThatOfEach) {
  for (DType weight : kTypes) {
    SCOPED_TRACE(std::string(Name(weight)) + " weights");
    const State data(weight, DType::kBFloat16);
    const OnDevice device_state(data);
    State expected = data;
    std::vector<SgdStep> steps(2);
    steps[0].momentum = steps[1].momentum = 0.9;
    steps[0].t = steps[1].t = 2;
    steps[1].weight_decay = 0.1;
    std::vector<UpdatePart> parts;
    for (const Part& part : ManyParts()) {
      const int group = static_cast<int>(parts.size()) % 2;
      parts.push_back(device_state.Of(data, part, group));
      reference::Sgd(steps[static_cast<std::size_t>(group)],
                     Skip(expected.weights.Range(), part.begin), DType::kBFloat16,
                     At(DType::kBFloat16, expected.gradient.data(), part.begin),
                     expected.first.data() + part.begin, part.count);
    }
    device::Sgd(steps, parts, nullptr);
    device_state.ExpectSame(expected);
  }
}

// Units of several types are updated together.
TEST(DeviceParts, RangesOfDifferentTypesMayComeTogether) {
  const State fp32(DType::kFloat32, DType::kFloat32), bf16(DType::kBFloat16, DType::kBFloat16);
  const OnDevice fp32_on_device(fp32), bf16_on_device(bf16);
  const AdamWStep step = StepOfGroup(0);
  const Part all{0, kNumel};
  const std::vector<UpdatePart> parts = {fp32_on_device.Of(fp32, all, 0),
                                         bf16_on_device.Of(bf16, all, 0)};
  device::AdamW({&step, 1}, parts, nullptr);
  for (const auto& [before, after] :
       {std::pair(&fp32, &fp32_on_device), std::pair(&bf16, &bf16_on_device)}) {
    State expected = *before;
    reference::AdamW(step, expected.weights.Range(), expected.gradient_dtype,
                     expected.gradient.data(), expected.first.data(), expected.second.data(),
                     kNumel);
    after->ExpectSame(expected);
  }
}

TEST(DeviceParts, AStepThatIsNotThereIsRefused) {
  UpdatePart part;
  part.step = 1;
  const AdamWStep adam;
  const SgdStep sgd;
  EXPECT_THROW(device::AdamW({&adam, 1}, {&part, 1}, nullptr), StateError);
  part.step = -1;
  EXPECT_THROW(device::Sgd({&sgd, 1}, {&part, 1}, nullptr), StateError);
}

TEST(DeviceParts, CopiesOfManyArraysHaveTheirBits) {
  for (DType dtype : kTypes) {
    const Bytes data = As(dtype, AnyFloats(kNumel, 5));
    const Bytes before = As(dtype, AnyFloats(kNumel, 6));
    const DeviceArray<std::byte> in(data), out(before);
    Bytes expected = before;
    std::vector<device::ArrayPart> parts;
    for (const Part& part : ManyParts()) {
      parts.push_back(
          {dtype, At(dtype, in.data(), part.begin), At(dtype, out.data(), part.begin), part.count});
      std::memcpy(At(dtype, expected.data(), part.begin), At(dtype, data.data(), part.begin),
                  static_cast<std::size_t>(part.count * ElementBytes(dtype)));
    }
    device::Copy(parts, nullptr);
    EXPECT_EQ(std::memcmp(out.Host().data(), expected.data(), expected.size()), 0) << Name(dtype);
  }
}

TEST(DeviceParts, SumsOfManyArraysAreThoseOfEach) {
  const Floats before = AnyFloats(3 * kNumel, 7);
  const DeviceArray<float> sums(before);
  Floats expected = before;
  std::vector<device::ArrayPart> parts;
  std::vector<Bytes> data;
  for (DType dtype : kTypes) data.push_back(As(dtype, AnyFloats(kNumel, 8)));
  const DeviceArray<std::byte> in[] = {DeviceArray<std::byte>(data[0]),
                                       DeviceArray<std::byte>(data[1]),
                                       DeviceArray<std::byte>(data[2])};
  for (const Part& part : ManyParts()) {
    for (std::size_t t = 0; t < 3; ++t) {
      const int64_t to = static_cast<int64_t>(t) * kNumel + part.begin;
      parts.push_back(
          {kTypes[t], At(kTypes[t], in[t].data(), part.begin), sums.data() + to, part.count});
      reference::AddToFloat(kTypes[t], At(kTypes[t], data[t].data(), part.begin),
                            expected.data() + to, part.count);
    }
  }
  device::AddToFloat(parts, nullptr);
  ExpectSameNumbers(sums.Host(), expected);
}

}  // namespace
}  // namespace ullage::kernels
