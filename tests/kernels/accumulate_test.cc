#include "kernels/accumulate.h"

#include <cmath>

#include "kernels/test_data.h"

namespace ullage::kernels {
namespace {

TEST(AddToFloat, VectorsGiveTheBitsOfTheReferenceEvenWhenUnaligned) {
  const Floats start = AnyFloats(kMany, 1);
  const Floats more = AnyFloats(kMany, 2);
  for (DType dtype : kTypes) {
    SCOPED_TRACE(Name(dtype));
    const Bytes in = As(dtype, more);
    Bytes shifted(in.size() + 1);  // not even aligned to an element
    std::memcpy(shifted.data() + 1, in.data(), in.size());
    Floats expected = start;
    reference::AddToFloat(dtype, in.data(), expected.data(), kMany);
    OnEveryTarget([&] {
      for (const std::byte* from : {in.data(), static_cast<const std::byte*>(shifted.data() + 1)}) {
        Floats sum = start;
        AddToFloat(dtype, from, sum.data(), kMany);
        ExpectSameNumbers(sum, expected);
        for (int64_t n = 0; n <= kLongestTail; ++n) {
          Floats tail(start.begin(), start.begin() + kLongestTail + 1);
          AddToFloat(dtype, from, tail.data(), n);
          Floats expected_tail = tail;
          std::copy_n(expected.begin(), n, expected_tail.begin());
          ExpectSameNumbers(tail, expected_tail);
        }
      }
    });
  }
}

TEST(SetFloat, IsAnAdditionToZeros) {
  Floats values = AnyFloats(kMany, 5);
  values[3] = -0.0F;
  for (DType dtype : kTypes) {
    SCOPED_TRACE(Name(dtype));
    const Bytes in = As(dtype, values);
    Floats expected(kMany, 0.0F);
    reference::AddToFloat(dtype, in.data(), expected.data(), kMany);
    Floats plain(kMany, 7.0F);
    reference::SetFloat(dtype, in.data(), plain.data(), kMany);
    ExpectSameNumbers(plain, expected);
    OnEveryTarget([&] {
      for (const int64_t shift : {0, 1}) {  // aligned, and not
        Floats sum(kMany + shift, 7.0F);
        SetFloat(dtype, in.data(), sum.data() + shift, kMany);
        const Floats got(sum.begin() + shift, sum.end());
        ExpectSameNumbers(got, expected);
        EXPECT_FALSE(std::signbit(got[3]));
      }
    });
  }
}

TEST(AddToFloat, KeepsWhatA16BitSumWouldLose) {
  OnEveryTarget([] {  // case C3: 1, then 255 times 2^-9
    Floats sum(20, 0.0f);
    const Bytes one = As(DType::kBFloat16, Floats(20, 1.0f));
    const Bytes small = As(DType::kBFloat16, Floats(20, 0x1p-9f));
    AddToFloat(DType::kBFloat16, one.data(), sum.data(), 20);
    for (int i = 0; i < 255; ++i) AddToFloat(DType::kBFloat16, small.data(), sum.data(), 20);
    EXPECT_EQ(sum, Floats(20, 0.00585174560546875f * 256));

    Bytes sum16 = one;
    for (int i = 0; i < 255; ++i) AddTo16(DType::kBFloat16, sum16.data(), small.data(), 20);
    ExpectSameNumbers(DType::kBFloat16, sum16, one);
  });
}

TEST(AddTo16, VectorsGiveTheBitsOfTheReference) {
  for (DType dtype : kTypes) {
    SCOPED_TRACE(Name(dtype));
    const Floats a = AnyFloats(kMany, 3);
    const Floats b = AnyFloats(kMany, 4);
    const Bytes start = As(dtype, a);
    const Bytes in = As(dtype, b);
    Bytes expected = start;
    reference::AddTo16(dtype, expected.data(), in.data(), kMany);
    OnEveryTarget([&] {
      Bytes sum = start;
      AddTo16(dtype, sum.data(), in.data(), kMany);
      ExpectSameNumbers(dtype, sum, expected);
      for (int64_t n = 0; n <= kLongestTail; ++n) {
        Bytes tail = As(dtype, Floats(a.begin(), a.begin() + kLongestTail + 1));
        Bytes expected_tail = tail;
        std::copy_n(expected.begin(), n * ElementBytes(dtype), expected_tail.begin());
        AddTo16(dtype, tail.data(), in.data(), n);
        ExpectSameNumbers(dtype, tail, expected_tail);
      }
    });
  }
}

TEST(AddTo16, KnownSums) {
  const Floats a = {1.0f, 1.0f, 256.0f, 65504.0f, 1.0f, -1.0f};
  const Floats b = {0x1p-8f, 0x1.8p-7f, 1.0f, 16.0f, -1.0f, 1.0f};
  Bytes bf16 = As(DType::kBFloat16, a);
  AddTo16(DType::kBFloat16, bf16.data(), As(DType::kBFloat16, b).data(), 6);
  ExpectSameNumbers(DType::kBFloat16, bf16,
                    As(DType::kBFloat16, {1.0f, 1.015625f, 256.0f, 65536.0f, 0.0f, 0.0f}));
  Bytes fp16 = As(DType::kFloat16, a);
  AddTo16(DType::kFloat16, fp16.data(), As(DType::kFloat16, b).data(), 6);
  ExpectSameNumbers(DType::kFloat16, fp16,
                    As(DType::kFloat16, {1.00390625f, 1.01171875f, 257.0f, INFINITY, 0.0f, 0.0f}));
}

}  // namespace
}  // namespace ullage::kernels
