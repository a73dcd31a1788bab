// Masters, sums, casts and dropout on the device give the bits of the host's plain reference.
#include <fmt/format.h>

#include <memory>

#include "kernels/accumulate.h"
#include "kernels/cast.h"
#include "kernels/device.h"
#include "kernels/device_data.h"
#include "kernels/dropout_hash.h"
#include "kernels/scalar_cast.h"
#include "kernels/write_back.h"
#include "ullage/error.h"

namespace ullage::kernels {
namespace {

// Runs `check` on ten million elements, and then on awkward parts of a few.
void OnLargeAndAwkward(const std::function<void(int64_t size, const Part&)>& check) {
  check(kTenMillion, {0, kTenMillion});
  for (const Part& part : AwkwardParts()) {
    SCOPED_TRACE(Describe(part));
    check(5000, part);
  }
}

TEST(DeviceWeights, MastersGoInAndOutWithTheBitsOfTheHost) {
  for (DType dtype : kTypes) {
    SCOPED_TRACE(Name(dtype));
    OnLargeAndAwkward([dtype](int64_t size, const Part& part) {
      const Floats masters = AnyFloats(size, 1);
      Weights expected(dtype, Floats(static_cast<size_t>(size), 7.5f));
      const DeviceWeights weights(expected);
      const DeviceArray<float> in(masters);
      device::StoreMaster(Skip(weights.Range(), part.begin), in.data() + part.begin, part.count,
                          nullptr);
      reference::StoreMaster(Skip(expected.Range(), part.begin), masters.data() + part.begin,
                             part.count);
      EXPECT_EQ(weights.Host().weight, expected.weight);
      EXPECT_EQ(weights.Host().extension, expected.extension);

      Floats expected_out(masters.size(), 3.0f);
      const DeviceArray<float> out(expected_out);
      device::LoadMaster(Skip(weights.Range(), part.begin), out.data() + part.begin, part.count,
                         nullptr);
      reference::LoadMaster(Skip(expected.Range(), part.begin), expected_out.data() + part.begin,
                            part.count);
      ExpectSameNumbers(out.Host(), expected_out);
    });
  }
}

TEST(DeviceAdoptWrites, DropsTheExtensionsThatTheHostDrops) {
  for (DType dtype : kTypes) {
    SCOPED_TRACE(Name(dtype));
    OnLargeAndAwkward([dtype](int64_t size, const Part& part) {
      Floats written = AnyFloats(size, 1);
      const Weights start(dtype, written);
      const Floats other = AnyFloats(size, 2);
      for (size_t i = 0; i < written.size(); i += 7) written[i] = other[i];
      Weights expected = start;
      expected.weight = Weights(dtype, written).weight;
      const DeviceWeights after(expected);
      const DeviceArray<std::byte> before(start.weight);
      device::AdoptWrites(At(dtype, before.data(), part.begin), Skip(after.Range(), part.begin),
                          part.count, nullptr);
      reference::AdoptWrites(At(dtype, start.weight.data(), part.begin),
                             Skip(expected.Range(), part.begin), part.count);
      EXPECT_EQ(after.Host().weight, expected.weight);
      EXPECT_EQ(after.Host().extension, expected.extension);
    });
  }
}

TEST(DeviceSums, AddToFloatHasTheBitsOfTheHost) {
  for (DType dtype : kTypes) {
    SCOPED_TRACE(Name(dtype));
    OnLargeAndAwkward([dtype](int64_t size, const Part& part) {
      const Bytes more = As(dtype, AnyFloats(size, 1));
      Floats expected = AnyFloats(size, 2);
      const DeviceArray<std::byte> in(more);
      const DeviceArray<float> sum(expected);
      device::AddToFloat(dtype, At(dtype, in.data(), part.begin), sum.data() + part.begin,
                         part.count, nullptr);
      reference::AddToFloat(dtype, At(dtype, more.data(), part.begin), expected.data() + part.begin,
                            part.count);
      ExpectSameNumbers(sum.Host(), expected);
    });
  }
}

TEST(DeviceSums, SlicesOfSeveralRanksAreAddedOneAfterTheOther) {
  for (DType dtype : kTypes) {
    for (const size_t ranks : {1u, 2u, 3u, 7u, 8u, 11u}) {
      SCOPED_TRACE(fmt::format("{} ranks of {}", ranks, Name(dtype)));
      for (const Part& part : AwkwardParts()) {
        Floats expected = AnyFloats(5000, 1);
        const DeviceArray<float> sum(expected);
        std::vector<std::unique_ptr<DeviceArray<std::byte>>> slices;
        std::vector<const std::byte*> pointers;
        for (size_t rank = 0; rank < ranks; ++rank) {
          const Bytes slice = As(dtype, AnyFloats(5000, 10 + rank));
          reference::AddToFloat(dtype, At(dtype, slice.data(), part.begin),
                                expected.data() + part.begin, part.count);
          slices.push_back(std::make_unique<DeviceArray<std::byte>>(slice));
          pointers.push_back(
              static_cast<const std::byte*>(At(dtype, slices.back()->data(), part.begin)));
        }
        device::AddSlicesToFloat(dtype, pointers, sum.data() + part.begin, part.count, nullptr);
        ExpectSameNumbers(sum.Host(), expected);
      }
    }
  }
}

TEST(DeviceSums, AddTo16HasTheBitsOfTheHost) {
  for (DType dtype : kTypes) {
    SCOPED_TRACE(Name(dtype));
    OnLargeAndAwkward([dtype](int64_t size, const Part& part) {
      const Bytes more = As(dtype, AnyFloats(size, 1));
      Bytes expected = As(dtype, AnyFloats(size, 2));
      const DeviceArray<std::byte> in(more), sum(expected);
      device::AddTo16(dtype, At(dtype, sum.data(), part.begin), At(dtype, in.data(), part.begin),
                      part.count, nullptr);
      reference::AddTo16(dtype, At(dtype, expected.data(), part.begin),
                         At(dtype, more.data(), part.begin), part.count);
      ExpectSameNumbers(dtype, sum.Host(), expected);
    });
  }
}

TEST(DeviceSums, AddTo16DoublesAnArrayThatIsBothOperands) {
  const Floats values = NormalFloats(1000, 1);
  Floats twice = values;
  for (float& value : twice) value *= 2;
  const DeviceArray<std::byte> sum(As(DType::kBFloat16, values));
  device::AddTo16(DType::kBFloat16, sum.data(), sum.data(), 1000, nullptr);
  EXPECT_EQ(sum.Host(), As(DType::kBFloat16, twice));
}

TEST(DeviceConvert, EveryPairHasTheBitsOfTheHostAndNothingElseChanges) {
  for (DType from : kTypes) {
    for (DType to : kTypes) {
      SCOPED_TRACE(std::string(Name(from)) + " to " + std::string(Name(to)));
      OnLargeAndAwkward([from, to](int64_t size, const Part& part) {
        const Bytes values = As(from, AnyFloats(size, 1));
        Bytes expected(static_cast<size_t>(size * ElementBytes(to)), std::byte{0x5a});
        const DeviceArray<std::byte> in(values), out(expected);
        device::Convert(from, At(from, in.data(), part.begin), to, At(to, out.data(), part.begin),
                        part.count, nullptr);
        reference::Convert(from, At(from, values.data(), part.begin), to,
                           At(to, expected.data(), part.begin), part.count);
        EXPECT_EQ(out.Host(), expected);
      });
    }
  }
}

TEST(DeviceDropout, KeepsWhatTheHashKeepsAndScalesIt) {
  const uint64_t seed = 0x123456789abcdef0;
  const uint32_t threshold = 0x40000000;  // a quarter is dropped
  const float scale = 4.0f / 3;
  const int64_t first =
      (int64_t{1} << 32) - 2000;  // the upper half of the index changes on the way
  for (DType dtype : kTypes) {
    SCOPED_TRACE(Name(dtype));
    OnLargeAndAwkward([&](int64_t size, const Part& part) {
      const Bytes values = As(dtype, AnyFloats(size, 1));
      Bytes expected = values;
      int64_t dropped = 0;
      for (int64_t i = part.begin; i < part.begin + part.count; ++i) {
        const auto index = static_cast<uint64_t>(first + i - part.begin);
        const bool drop = DropoutHash(seed, index) < threshold;
        dropped += drop ? 1 : 0;
        const float value = LoadFloat(dtype, values.data(), i) * (drop ? 0.0f : scale);
        StoreFloat(dtype, expected.data(), i, value);
      }
      const DeviceArray<std::byte> array(values);  // in place
      void* const at = At(dtype, static_cast<void*>(array.data()), part.begin);
      device::DropoutMask(dtype, at, at, first, part.count, {seed, threshold, scale}, nullptr);
      ExpectSameNumbers(dtype, array.Host(), expected);
      const DeviceArray<std::byte> again(values);
      const DeviceArray<uint64_t> place(Array<uint64_t>{seed});
      void* const there = At(dtype, static_cast<void*>(again.data()), part.begin);
      device::DropoutMask(dtype, there, there, first, part.count,
                          {~seed, threshold, scale, place.data()}, nullptr);
      ExpectSameNumbers(dtype, again.Host(), expected);
      if (part.count == kTenMillion) {
        EXPECT_NEAR(static_cast<double>(dropped) / kTenMillion, 0.25, 1e-3);
      }
    });
  }
}

TEST(DeviceErrors, NameTheKernelAndDoNotStick) {
  try {
    device::Convert(DType::kFloat32, nullptr, DType::kFloat32, nullptr, 4, nullptr);
    FAIL() << "a copy between null pointers was accepted";
  } catch (const StateError& error) {
    EXPECT_NE(std::string(error.what()).find("Convert"), std::string::npos) << error.what();
  }
  const DeviceArray<float> sum(Floats(4, 1.0f)), in(Floats(4, 2.0f));
  device::AddToFloat(DType::kFloat32, in.data(), sum.data(), 4, nullptr);
  EXPECT_EQ(sum.Host(), Floats(4, 3.0f));
}

}  // namespace
}  // namespace ullage::kernels
