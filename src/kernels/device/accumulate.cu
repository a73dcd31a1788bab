#include "kernels/accumulate.h"

#include "kernels/cast.h"
#include "kernels/device/each_element.cuh"
#include "kernels/device/each_part.cuh"
#include "kernels/device/elements.cuh"

namespace ullage::kernels::device {
namespace {

constexpr int WidthFor(DType a, DType b) {
  return a == DType::kFloat32 || b == DType::kFloat32 ? 4 : 8;
}

template <DType kIn, DType kSum>
struct AddBody {
  static constexpr int kWidth = WidthFor(kIn, kSum);

  template <int W>
  struct Values {
    Floats<W> in, sum;
  };

  template <int W>
  __device__ Values<W> Load(int64_t i) const {
    return {LoadFloats<kIn, W>(in, i), LoadFloats<kSum, W>(sum, i)};
  }
  template <int W>
  __device__ void Store(int64_t i, Values<W> values) const {
#pragma unroll
    for (int j = 0; j < W; ++j) {
      values.sum.at[j] = __fadd_rn(values.sum.at[j], values.in.at[j]);
    }
    StoreFloats<kSum, W>(values.sum, sum, i);
  }

  const void* in;
  void* sum;
};

template <DType kFrom, DType kTo>
struct ConvertBody {
  static constexpr int kWidth = WidthFor(kFrom, kTo);

  template <int W>
  __device__ Floats<W> Load(int64_t i) const {
    return LoadFloats<kFrom, W>(in, i);
  }
  template <int W>
  __device__ void Store(int64_t i, const Floats<W>& values) const {
    StoreFloats<kTo, W>(values, out, i);
  }

  const void* in;
  void* out;
};

struct ArrayPointers {
  const void* in;
  void* out;
};

inline constexpr int kArrays = 120;  // of a table

template <DType kIn>
struct AddTable : PartTable<ArrayPointers, kArrays, 4096> {
  static constexpr int kWidth = AddBody<kIn, DType::kFloat32>::kWidth;

  __device__ AddBody<kIn, DType::kFloat32> BodyOf(int part) const {
    return {this->parts[part].in, this->parts[part].out};
  }
};

template <DType kType>
struct CopyBody {
  template <int W>
  __device__ Elements<kType, W> Load(int64_t i) const {
    return LoadElements<kType, W>(in, i);
  }
  template <int W>
  __device__ void Store(int64_t i, const Elements<kType, W>& elements) const {
    StoreElements<kType, W>(elements, out, i);
  }

  const void* in;
  void* out;
};

// Bits are bits: one table for both 16-bit types.
template <DType kType>
struct CopyTable : PartTable<ArrayPointers, kArrays, 4096> {
  static constexpr int kWidth = 16 / ElementBytes(kType);

  __device__ CopyBody<kType> BodyOf(int part) const {
    return {this->parts[part].in, this->parts[part].out};
  }
};

// Launches those of `parts` for which `belongs`.
template <class Table, class Belongs>
void LaunchArrays(const char* kernel, std::span<const ArrayPart> parts, Belongs belongs,
                  Stream stream) {
  PartLauncher<Table::kWidth, Table> launcher(kernel, Table{}, stream);
  for (const ArrayPart& part : parts) {
    if (!belongs(part.dtype)) continue;
    launcher.Add(ArrayPointers{part.in, part.out}, part.n, {part.in, part.out});
  }
  launcher.Finish();
}

}  // namespace

void AddToFloat(std::span<const ArrayPart> parts, Stream stream) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    WithDType(dtype, [&](auto type) {
      LaunchArrays<AddTable<type()>>(
          "AddToFloat", parts, [&](DType part) { return part == dtype; }, stream);
    });
  }
}

void Copy(std::span<const ArrayPart> parts, Stream stream) {
  LaunchArrays<CopyTable<DType::kFloat32>>(
      "Copy", parts, [](DType part) { return ElementBytes(part) == 4; }, stream);
  LaunchArrays<CopyTable<DType::kBFloat16>>(
      "Copy", parts, [](DType part) { return ElementBytes(part) == 2; }, stream);
}

void AddToFloat(DType dtype, const void* in, float* sum, int64_t n, Stream stream) {
  WithDType(dtype, [&](auto type) {
    LaunchEachElement<4>("AddToFloat", AddBody<type(), DType::kFloat32>{in, sum}, {in, sum}, n,
                         stream);
  });
}

void AddTo16(DType dtype, void* sum, const void* in, int64_t n, Stream stream) {
  WithDType(dtype, [&](auto type) {
    LaunchEachElement<2>("AddTo16", AddBody<type(), type()>{in, sum}, {in, sum}, n, stream);
  });
}

void Convert(DType from, const void* in, DType to, void* out, int64_t n, Stream stream) {
  if (from == to) {
    if (n <= 0) return;
    const auto bytes = static_cast<size_t>(n * ElementBytes(from));
    return Check(cudaMemcpyAsync(out, in, bytes, cudaMemcpyDefault, CudaStream(stream)),
                 "the copy of Convert");
  }
  WithDType(from, [&](auto from_type) {
    WithDType(to, [&](auto to_type) {
      if constexpr (from_type() != to_type()) {
        LaunchEachElement<4>("Convert", ConvertBody<from_type(), to_type()>{in, out}, {in, out}, n,
                             stream);
      }
    });
  });
}

}  // namespace ullage::kernels::device
