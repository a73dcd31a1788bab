#include "kernels/cast.h"

#include "kernels/test_data.h"

namespace ullage::kernels {
namespace {

struct Format {
  DType dtype;
  int exponent_bits;
  int mantissa_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
};
constexpr Format kBFloat16Format{DType::kBFloat16, 8, 7};
constexpr Format kFloat16Format{DType::kFloat16, 5, 10};

// By the definition of the format, in double.
double Value(const Format& format, uint16_t bits) {
  const int exponent = (bits >> format.mantissa_bits) & ((1 << format.exponent_bits) - 1);
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << format.exponent_bits) - 1) {
    return mantissa != 0 ? NAN : sign * INFINITY;
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - format.bias() - format.mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << format.mantissa_bits),
                           exponent - format.bias() - format.mantissa_bits);
}

// Rounded to nearest even by arithmetic in double; not for NaN.
uint16_t Rounded(const Format& format, float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  const auto infinity =
      static_cast<uint16_t>(((1 << format.exponent_bits) - 1) << format.mantissa_bits);
  if (magnitude == 0) return sign;
  if (std::isinf(magnitude)) return sign | infinity;
  const int exponent = std::max(std::ilogb(magnitude), 1 - format.bias());
  const int last_place = exponent - format.mantissa_bits;
  const auto places = static_cast<int64_t>(std::nearbyint(std::ldexp(magnitude, -last_place)));
  // `places` counts from the exponent's first value on, and carries into the exponent by itself.
  const int64_t bits =
      places + (static_cast<int64_t>(exponent + format.bias() - 1) << format.mantissa_bits);
  return static_cast<uint16_t>(sign | std::min<int64_t>(bits, infinity));
}

TEST(Convert, EveryPatternOf16BitsBecomesItsValue) {
  Array<uint16_t> patterns(65536);
  for (size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
  for (const Format& format : {kBFloat16Format, kFloat16Format}) {
    SCOPED_TRACE(Name(format.dtype));
    OnEveryTarget([&] {
      Floats values(65536);
      Convert(format.dtype, patterns.data(), DType::kFloat32, values.data(), 65536);
      Array<uint16_t> back(65536);
      Convert(DType::kFloat32, values.data(), format.dtype, back.data(), 65536);
      for (size_t i = 0; i < patterns.size(); ++i) {
        const double expected = Value(format, patterns[i]);
        if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(values[i])) << i;
          const int quiet = 1 << (format.mantissa_bits - 1);
          ASSERT_EQ(back[i], patterns[i] | quiet) << i;  // sign and payload are kept
          continue;
        }
        ASSERT_EQ(static_cast<double>(values[i]), expected) << i;
        ASSERT_EQ(std::signbit(values[i]), std::signbit(expected)) << i;
        ASSERT_EQ(back[i], patterns[i]) << i;
      }
    });
  }
}

TEST(Convert, FloatsRoundToNearestEven) {
  const Floats values = AnyFloats(kMany, 1);
  for (const Format& format : {kBFloat16Format, kFloat16Format}) {
    SCOPED_TRACE(Name(format.dtype));
    OnEveryTarget([&] {
      Array<uint16_t> rounded(values.size());
      Convert(DType::kFloat32, values.data(), format.dtype, rounded.data(), kMany);
      for (size_t i = 0; i < values.size(); ++i) {
        if (std::isnan(values[i])) {
          ASSERT_TRUE(std::isnan(Value(format, rounded[i]))) << i;
        } else {
          ASSERT_EQ(rounded[i], Rounded(format, values[i])) << values[i];
        }
      }
    });
  }
}

TEST(Convert, KnownValues) {
  const Floats values = {1.0f,     1.00390625f, 1.01171875f, 3.4028235e38f, 65519.0f,
                         65520.0f, 0x1p-24f,    0x1p-25f,    0x1.8p-25f,    -0.0f};
  Array<uint16_t> bf16(values.size()), fp16(values.size());
  const auto n = static_cast<int64_t>(values.size());
  Convert(DType::kFloat32, values.data(), DType::kBFloat16, bf16.data(), n);
  Convert(DType::kFloat32, values.data(), DType::kFloat16, fp16.data(), n);
  EXPECT_EQ(bf16, (Array<uint16_t>{0x3f80, 0x3f80, 0x3f82, 0x7f80, 0x4780, 0x4780, 0x3380, 0x3300,
                                   0x3340, 0x8000}));
  EXPECT_EQ(fp16, (Array<uint16_t>{0x3c00, 0x3c04, 0x3c0c, 0x7c00, 0x7bff, 0x7c00, 0x0001, 0x0000,
                                   0x0001, 0x8000}));
}

TEST(Convert, VectorsGiveTheBitsOfTheReferenceForEveryPairAndTail) {
  const Floats floats = AnyFloats(kMany, 2);
  for (DType from : kTypes) {
    const Bytes in = As(from, floats);
    for (DType to : kTypes) {
      SCOPED_TRACE(std::string(Name(from)) + " to " + std::string(Name(to)));
      Bytes expected(floats.size() * static_cast<size_t>(ElementBytes(to)));
      reference::Convert(from, in.data(), to, expected.data(), kMany);
      OnEveryTarget([&] {
        Bytes out(expected.size());
        Convert(from, in.data(), to, out.data(), kMany);
        EXPECT_EQ(std::memcmp(out.data(), expected.data(), out.size()), 0);
        for (int64_t n = 0; n <= kLongestTail; ++n) {
          const auto bytes = static_cast<size_t>(n * ElementBytes(to));
          Bytes tail(bytes + 64, std::byte{0x5a});
          Convert(from, in.data(), to, tail.data(), n);
          ASSERT_EQ(std::memcmp(tail.data(), expected.data(), bytes), 0) << n;
          for (size_t i = bytes; i < tail.size(); ++i) ASSERT_EQ(tail[i], std::byte{0x5a}) << n;
        }
      });
    }
  }
}

}  // namespace
}  // namespace ullage::kernels
