// What the layers of models do on a CUDA device in fewer launches than torch's operators.
//
// Everything that kernels/device.h says of streams, memory and errors holds here.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/add_norm.h"
#include "kernels/column_sums.h"
#include "kernels/device.h"

namespace ullage::kernels::device {

// kernels/add_norm.h, with the bits of the reference. Throw StateError for a width that
// AddNormTakes refuses.
void AddNorm(const Matrix& shape, const AddNormArrays& arrays, double epsilon,
             const DropoutKey& dropout, Stream stream);
void AddNormGradient(const Matrix& shape, const AddNormGradientArrays& arrays,
                     const DropoutKey& dropout, Stream stream);

// kernels/column_sums.h. Matrices have a width that is a multiple of 16 bytes and start at
// multiples of 16 bytes. GeluGradient differs from the reference by what erf and exp differ; the
// others have its bits.
void FinishColumnSums(std::span<const ColumnSum> sums, Stream stream);  // up to 8 of them
// For each of up to 4 matrices of one shape; their partials follow each other.
void PartialColumnSums(const Matrix& shape, std::span<const void* const> matrices, float* partials,
                       Stream stream);
void GeluGradient(const Matrix& shape, const GeluGradientArrays& arrays, Stream stream);

}  // namespace ullage::kernels::device
