#include "torchx/attention_on_meta.h"

#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "torchx/operator_watch.h"
#include "torchx/stand_in.h"

namespace ullage::torchx {
namespace {

using at::Tensor;
using std::optional;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t RoundUp(std::int64_t n, std::int64_t grain) {
  return (n + grain - 1) / grain * grain;
}

Tensor Floats(const Tensor& like, at::IntArrayRef sizes) {
  return at::empty(sizes, like.options().dtype(at::kFloat));
}

// Heads side by side for each token, as the kernels of CUDA want them: [batch, tokens, heads, size]
// of [batch, heads, tokens, size].
Tensor ByToken(const Tensor& x) {
  return x.transpose(1, 2);
}

Tensor EmptyByToken(const Tensor& like, std::int64_t heads, std::int64_t size) {
  return at::empty({like.size(0), like.size(2), heads, size}, like.options()).transpose(1, 2);
}

// How many parts the flash kernel splits the keys into, so that a small batch fills the device.
std::int64_t FlashSplits(const Tensor& query, const Tensor& key) {
  const std::int64_t size = query.size(3);
  const std::int64_t keys_of_block = size <= 64 ? 256 : size <= 128 ? 128 : 64;
  const std::int64_t key_blocks = (key.size(2) + keys_of_block - 1) / keys_of_block;
  const std::int64_t work = query.size(0) * query.size(1) * ((query.size(2) + 63) / 64);
  const std::int64_t slots = 2 * StandInMultiprocessors();
  if (static_cast<double>(work) >= 0.8 * static_cast<double>(slots)) return 1;
  constexpr std::int64_t kMost = 128;
  const std::int64_t most = std::min({kMost, slots, key_blocks});
  const auto blocks_of = [&](std::int64_t splits) { return (key_blocks + splits - 1) / splits; };
  std::vector<double> efficiency(static_cast<std::size_t>(most) + 1, 0);
  for (std::int64_t splits = 1; splits <= most; ++splits) {
    if (splits > 1 && blocks_of(splits) == blocks_of(splits - 1)) continue;
    const double waves = static_cast<double>(work * splits) / static_cast<double>(slots);
    efficiency[static_cast<std::size_t>(splits)] = waves / std::ceil(waves);
  }
  const double enough = 0.85 * *std::ranges::max_element(efficiency);
  const auto first =
      std::ranges::find_if(efficiency, [&](double e) { return e > 0 && e >= enough; });
  return std::max<std::int64_t>(1, first - efficiency.begin());
}

// What a backward needs to know of its forward.
struct Variant {
  double dropout = 0;
  bool is_causal = false;

  void Save(AutogradContext& context) const {
    context.saved_data["dropout"] = dropout;
    context.saved_data["is_causal"] = is_causal;
  }
  static Variant Saved(AutogradContext& context) {
    return {context.saved_data["dropout"].toDouble(), context.saved_data["is_causal"].toBool()};
  }
};

void NoteAttention(OperatorWork::Kind kind, const Tensor& query, const Tensor& key,
                   const Variant& variant) {
  OperatorWork work;
  work.kind = kind;
  work.type = query.scalar_type();
  work.is_causal = variant.is_causal;
  work.has_dropout = variant.dropout > 0;
  work.batch = query.size(0) * query.size(1);
  work.rows = query.size(2);
  work.columns = key.size(2);
  work.inner = query.size(3);
  work.bytes = static_cast<std::int64_t>(2 * query.nbytes() + 2 * key.nbytes());
  NoteKernel(work);
}

struct Attended {
  Tensor out, logsumexp, seeds, unused;
};

// mha_fwd
Attended FlashForward(const Tensor& query, const Tensor& key, double dropout) {
  const std::int64_t batch = query.size(0), heads = query.size(1), queries = query.size(2);
  Attended result;
  result.out = EmptyByToken(query, heads, query.size(3));
  result.logsumexp = Floats(query, {batch, heads, queries});
  const std::int64_t splits = dropout > 0 ? 1 : FlashSplits(query, key);
  if (splits > 1) {
    const Tensor sums = Floats(query, {splits, batch, heads, queries});
    const Tensor parts = Floats(query, {splits, batch, heads, queries, RoundUp(query.size(3), 32)});
  }
  result.seeds = at::empty({2}, query.options().dtype(at::kLong));
  result.unused = at::empty({}, query.options().dtype(at::kLong));
  return result;
}

// mha_bwd in its repeatable form
variable_list FlashBackward(const Tensor& gradient, const Tensor& query, const Tensor& key,
                            const Tensor& value) {
  const std::int64_t batch = query.size(0), heads = query.size(1), size = query.size(3);
  const Tensor out_gradient = ByToken(gradient).contiguous();
  const Tensor q = EmptyByToken(query, heads, size);
  const Tensor k = EmptyByToken(key, key.size(1), size);
  const Tensor v = EmptyByToken(value, value.size(1), size);
  const std::int64_t rows = RoundUp(query.size(2), 128);
  const std::int64_t wide = size <= 192 ? RoundUp(size, 32) : 256;
  const Tensor deltas = Floats(query, {batch, heads, rows});
  const std::int64_t splits = (StandInMultiprocessors() + batch * heads - 1) / (batch * heads);
  const Tensor sums = Floats(query, {splits, batch, rows, heads, wide});
  if (key.size(1) != heads) {  // gradients of each query head, added up over those that share
    const Tensor wide_k = EmptyByToken(key, heads, size), wide_v = EmptyByToken(value, heads, size);
    return {q, k, v};
  }
  return {q, k, v};
}

class FlashOnMeta final : public torch::autograd::Function<FlashOnMeta> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& query, const Tensor& key,
                        const Tensor& value, double dropout, bool is_causal) {
    const Variant variant{dropout, is_causal};
    NoteAttention(OperatorWork::Kind::kFlash, query, key, variant);
    variant.Save(*context);
    const Attended result = FlashForward(query, key, dropout);
    context->save_for_backward(
        {query, key, value, result.out, result.logsumexp, result.seeds, result.unused});
    return result.out;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    NoteAttention(OperatorWork::Kind::kFlashGradient, saved[0], saved[1], Variant::Saved(*context));
    variable_list results = FlashBackward(gradients[0], saved[0], saved[1], saved[2]);
    results.resize(5);
    return results;
  }
};

// Bytes of each head in which the backward kernel adds up the query's gradient over blocks of keys:
// for each block of queries a lock and fp32 sums.
std::int64_t EfficientWorkspace(const Tensor& query) {
  constexpr std::int64_t kLock = 16;
  const std::int64_t size = query.size(3);
  const std::int64_t rows = size > 64 && size <= 128 ? 128 : 64;  // of a block
  const std::int64_t blocks = (query.size(2) + rows - 1) / rows;
  return blocks * (kLock + rows * RoundUp(size, 64) * 4);
}

class EfficientOnMeta final : public torch::autograd::Function<EfficientOnMeta> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& query, const Tensor& key,
                        const Tensor& value, const optional<Tensor>& mask, double dropout,
                        bool is_causal) {
    const Variant variant{dropout, is_causal};
    NoteAttention(OperatorWork::Kind::kEfficient, query, key, variant);
    variant.Save(*context);
    const std::int64_t batch = query.size(0), heads = query.size(1), queries = query.size(2);
    const Tensor out = EmptyByToken(query, heads, value.size(3));
    const Tensor logsumexp = Floats(query, {batch, heads, RoundUp(queries, 32)});
    context->save_for_backward({query, key, value, out, logsumexp, mask.value_or(Tensor())});
    return out;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &query = saved[0], &key = saved[1], &value = saved[2];
    NoteAttention(OperatorWork::Kind::kEfficientGradient, query, key, Variant::Saved(*context));
    const std::int64_t batch = query.size(0), heads = query.size(1), queries = query.size(2);
    const Tensor out_gradient = ByToken(gradients[0]).contiguous();
    const Tensor q = EmptyByToken(query, heads, query.size(3));
    const Tensor k = EmptyByToken(key, heads, key.size(3));
    const Tensor v = EmptyByToken(value, heads, value.size(3));
    const Tensor deltas = Floats(query, {batch, heads, queries});
    const Tensor sums =
        at::empty({batch * heads * EfficientWorkspace(query)}, query.options().dtype(at::kByte));
    return {q, k, v, Tensor(), Tensor(), Tensor()};
  }
};

// A CPU tensor with the metadata of `t` and no memory, to ask a function that reads no element.
Tensor Phantom(const Tensor& t) {
  Tensor phantom =
      at::from_blob(nullptr, t.sizes(), t.strides(), at::TensorOptions().dtype(t.scalar_type()));
  if (t.requires_grad()) phantom.set_requires_grad(true);
  return phantom;
}

Tensor AdditiveMask(const Tensor& mask, const Tensor& query) {
  if (mask.scalar_type() != at::kBool) return mask;
  return at::where(at::logical_not(mask), -std::numeric_limits<double>::infinity(),
                   at::scalar_tensor(0.0, query.options()));
}

// The memory-efficient kernel wants rows of masks that begin at multiples of 16 bytes.
Tensor AlignedMask(const Tensor& mask, const Tensor& query, const Tensor& key) {
  constexpr std::int64_t kGrain = 16;
  const Tensor additive = AdditiveMask(mask, query);
  const std::int64_t keys = additive.size(-1);
  Tensor aligned = additive;
  if (keys % kGrain != 0) {
    aligned = at::constant_pad_nd(additive, {0, RoundUp(keys, kGrain) - keys}).slice(-1, 0, keys);
  }
  return aligned.expand({query.size(0), query.size(1), query.size(2), key.size(2)});
}

Tensor AsOnCuda(const Tensor& query, const Tensor& key, const Tensor& value,
                const optional<Tensor>& mask, double dropout, bool is_causal) {
  const bool is_masked = mask && mask->defined();
  const bool is_narrow = query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16;
  constexpr std::int64_t kWidest = 256, kGrain = 8;
  const std::int64_t size = query.size(3);
  if (is_narrow && !is_masked && size <= kWidest && value.size(3) == size) {
    const auto wide = [&](const Tensor& x) {
      return size % kGrain == 0 ? x : at::constant_pad_nd(x, {0, RoundUp(size, kGrain) - size});
    };
    const Tensor out = FlashOnMeta::apply(wide(query), wide(key), wide(value), dropout, is_causal);
    return size % kGrain == 0 ? out : out.slice(-1, 0, size);
  }
  optional<Tensor> aligned;
  if (is_masked) aligned = AlignedMask(*mask, query, key);
  return EfficientOnMeta::apply(query, key, value, aligned, dropout, is_causal);
}

}  // namespace

Tensor AttentionOnMeta(const Tensor& query, const Tensor& key, const Tensor& value,
                       const optional<Tensor>& attn_mask, double dropout_p, bool is_causal,
                       optional<double> scale, bool enable_gqa) {
  const bool is_batched = query.dim() == 4 && key.dim() == 4 && value.dim() == 4;
  if (ComputesOnCuda(query) && is_batched)
    return AsOnCuda(query, key, value, attn_mask, dropout_p, is_causal);

  constexpr int64_t kFlash = 1;  // sdp::SDPBackend::flash_attention
  const bool is_masked = attn_mask && attn_mask->defined();
  optional<Tensor> mask = attn_mask, phantom_mask;
  if (is_masked) phantom_mask = Phantom(*attn_mask);
  const int64_t choice =
      at::_fused_sdp_choice(Phantom(query), Phantom(key), Phantom(value), phantom_mask, dropout_p,
                            is_causal, scale, enable_gqa);
  if (is_masked) mask = AdditiveMask(*attn_mask, query);
  if (choice == kFlash) {
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout_p,
                                                                       is_causal, mask, scale));
  }
  return std::get<0>(at::_scaled_dot_product_attention_math(
      query, key, value, mask, dropout_p, is_causal, std::nullopt, scale, enable_gqa));
}

}  // namespace ullage::torchx
