#include "models/causal_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <limits>
#include <optional>

#include "torchx/stand_in.h"

namespace ullage::models {

at::Tensor CausalBias(std::int64_t length, std::int64_t window, const at::Tensor& document_ids,
                      c10::Device device, at::ScalarType dtype) {
  const bool is_windowed = window > 0 && window < length;
  if (!is_windowed && !document_ids.defined()) return {};
  const at::Tensor index = at::arange(length, at::TensorOptions(device).dtype(at::kInt));
  const at::Tensor distance = index.unsqueeze(1) - index.unsqueeze(0);
  at::Tensor seen = (distance >= 0).unsqueeze(0);
  if (is_windowed) seen = seen & (distance < window);
  if (document_ids.defined()) {
    seen = seen & (document_ids.unsqueeze(2) == document_ids.unsqueeze(1));
  }
  const auto value = [&](double number) {
    return at::scalar_tensor(number, at::TensorOptions(device).dtype(dtype));
  };
  return at::where(seen, value(0), value(-std::numeric_limits<double>::infinity())).unsqueeze(1);
}

at::Tensor CausalAttention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                           const at::Tensor& bias, double dropout) {
  const std::int64_t batch = query.size(0), length = query.size(1), heads = query.size(2);
  const std::int64_t width = query.size(3), size = value.size(3);
  const std::int64_t shared = heads / key.size(2);  // query heads that share a key head
  // Only CUDA's causal 16-bit kernels read a shared head in place.
  const bool reads_shared = torchx::ComputesOnCuda(query) && query.scalar_type() != at::kFloat &&
                            !bias.defined() && dropout == 0;
  const auto per_head = [&](const at::Tensor& x) {
    if (shared == 1 || reads_shared) return x.transpose(1, 2);
    return x.unsqueeze(3)
        .expand({batch, length, x.size(2), shared, x.size(3)})
        .reshape({batch, length, heads, x.size(3)})
        .transpose(1, 2);
  };
  const at::Tensor wide_value =
      size == width ? value : at::constant_pad_nd(value, {0, width - size});
  std::optional<at::Tensor> mask;
  if (bias.defined()) mask = bias;
  const at::Tensor output = at::scaled_dot_product_attention(
      query.transpose(1, 2), per_head(key), per_head(wide_value), mask, dropout,
      /*is_causal=*/!bias.defined(), 1.0 / std::sqrt(static_cast<double>(size)),
      /*enable_gqa=*/shared > 1 && reads_shared);
  return output.transpose(1, 2).slice(-1, 0, size).reshape({batch, length, heads * size});
}

std::int64_t AttentionWidth(std::int64_t size, c10::Device device) {
  return torchx::ComputesOnCuda(device) ? (size + 7) / 8 * 8 : size;
}

}  // namespace ullage::models
