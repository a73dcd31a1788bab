#include "kernels/test_data.h"

#include "kernels/cast.h"
#include "kernels/targets.h"

namespace ullage::kernels {

Floats AnyFloats(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Floats values(static_cast<size_t>(n));
  for (float& value : values) {
    const auto bits = static_cast<uint32_t>(random());
    const uint32_t sign = bits & 0x80000000;
    switch (random() % 8) {
      case 0:
        value = std::bit_cast<float>(bits);
        break;
      case 1:
        value = std::bit_cast<float>(sign | (bits & 0x7fffff));
        break;  // subnormal
      case 2:
        value = std::bit_cast<float>(bits & 0xffff8000);
        break;  // halfway or exact in bf16
      case 3:
        value = std::ldexp(normal(random), static_cast<int>(bits % 44) - 28);
        break;   // fp16
      case 4: {  // halfway between neighbours of fp16, subnormal ones included
        const float place = std::ldexp(1.0f, static_cast<int>(bits % 30) - 25);
        value = place * static_cast<float>(random() % 4096);
        break;
      }
      case 5: {
        constexpr float kSpecial[] = {0.0f,     -0.0f,    INFINITY, -INFINITY, NAN,   65504.0f,
                                      65519.9f, 65520.0f, 3.4e38f,  0x1p-24f,  1e-45f};
        value = kSpecial[random() % std::size(kSpecial)];
        break;
      }
      default:
        value = normal(random);
    }
  }
  return values;
}

Floats NormalFloats(int64_t n, uint64_t seed, float deviation) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  Floats values(static_cast<size_t>(n));
  for (float& value : values) value = normal(random);
  return values;
}

Bytes As(DType dtype, const Floats& values) {
  Bytes bytes(values.size() * static_cast<size_t>(ElementBytes(dtype)));
  reference::Convert(DType::kFloat32, values.data(), dtype, bytes.data(),
                     static_cast<int64_t>(values.size()));
  return bytes;
}

Weights::Weights(DType type, const Floats& masters)
    : dtype(type),
      weight(masters.size() * static_cast<size_t>(ElementBytes(type))),
      extension(masters.size() * static_cast<size_t>(MasterExtensionBytes(type))) {
  reference::StoreMaster(Range(), masters.data(), size());
}

WeightRange Weights::Range() {
  return {dtype, weight.data(), extension.empty() ? nullptr : extension.data()};
}

Floats Weights::Masters() {
  Floats masters(static_cast<size_t>(size()));
  reference::LoadMaster(Range(), masters.data(), size());
  return masters;
}

void OnEveryTarget(const std::function<void()>& check) {
  for (const std::string& target : SupportedTargets()) {
    SCOPED_TRACE("on " + target);
    UseTarget(target);
    check();
  }
  UseTarget("");
}

void ExpectSameNumbers(const Floats& actual, const Floats& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(actual[i]) && std::isnan(expected[i])) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(actual[i]), std::bit_cast<uint32_t>(expected[i]))
        << "element " << i << ": " << actual[i] << " and " << expected[i];
  }
}

void ExpectSameNumbers(DType dtype, const Bytes& actual, const Bytes& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  const auto floats = [dtype](const Bytes& bytes) {
    Floats values(bytes.size() / static_cast<size_t>(ElementBytes(dtype)));
    reference::Convert(dtype, bytes.data(), DType::kFloat32, values.data(),
                       static_cast<int64_t>(values.size()));
    return values;
  };
  ExpectSameNumbers(floats(actual), floats(expected));
}

void ExpectSameWeights(const Weights& actual, const Weights& expected) {
  ASSERT_EQ(actual.dtype, expected.dtype);
  ExpectSameNumbers(actual.dtype, actual.weight, expected.weight);
  if (actual.dtype == DType::kFloat16) {
    return ExpectSameNumbers(DType::kFloat32, actual.extension, expected.extension);
  }
  ASSERT_EQ(actual.extension.size(), expected.extension.size());
  for (size_t i = 0; i < actual.extension.size(); ++i) {
    ASSERT_EQ(actual.extension[i], expected.extension[i]) << "byte " << i;
  }
}

}  // namespace ullage::kernels
