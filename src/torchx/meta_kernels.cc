#include "torchx/meta_kernels.h"

#include <ATen/TensorIterator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include <array>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace ullage::torchx {
namespace {

using at::Tensor;
using std::optional;

// Each function below has the signature of the operator it stands for.

// Gives `out` the shape and layout that the CPU kernel gets from the iterator it runs over.
void ShapeLikeIterator(Tensor& out, std::initializer_list<Tensor> inputs) {
  at::TensorIteratorConfig config;
  config.check_all_same_dtype(false).add_output(out);
  for (const Tensor& input : inputs) config.add_owned_const_input(input);
  config.build();
}

Tensor& WhereOut(const Tensor& condition, const Tensor& a, const Tensor& b, Tensor& out) {
  ShapeLikeIterator(out, {condition, a, b});
  return out;
}

Tensor Where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  Tensor out = at::empty({0}, condition.options().dtype(at::result_type(a, b)).device(at::kMeta));
  return WhereOut(condition, a, b, out);
}

Tensor& AbsOut(const Tensor& self, Tensor& out) {
  ShapeLikeIterator(out, {self});
  return out;
}

Tensor& LogicalNotOut(const Tensor& self, Tensor& out) {
  ShapeLikeIterator(out, {self});
  return out;
}

Tensor IndexSelect(const Tensor& self, int64_t dim, const Tensor& index) {
  auto sizes = self.sizes().vec();
  if (!sizes.empty()) sizes[static_cast<size_t>(dim < 0 ? dim + self.dim() : dim)] = index.numel();
  return at::empty(sizes, self.options());
}

Tensor EmbeddingDenseBackward(const Tensor& gradient, const Tensor&, c10::SymInt num_weights,
                              c10::SymInt, bool) {
  return at::empty({num_weights.guard_int(__FILE__, __LINE__), gradient.size(-1)},
                   gradient.options());
}

// Mean and reciprocal deviation are fp32 where 16-bit input meets fp32 weights.
std::tuple<Tensor, Tensor, Tensor> NativeLayerNorm(const Tensor& input,
                                                   c10::SymIntArrayRef normalized_shape,
                                                   const optional<Tensor>& weight,
                                                   const optional<Tensor>& bias, double) {
  auto sizes = input.sizes().vec();
  for (size_t i = sizes.size() - normalized_shape.size(); i < sizes.size(); ++i) sizes[i] = 1;
  const auto is_float = [](const optional<Tensor>& t) {
    return t && t->defined() && t->scalar_type() == at::kFloat;
  };
  auto statistics = input.options();
  if (is_float(weight) || is_float(bias)) statistics = statistics.dtype(at::kFloat);
  return {at::empty(input.sizes(), input.options()), at::empty(sizes, statistics),
          at::empty(sizes, statistics)};
}

std::tuple<Tensor, Tensor, Tensor> NativeLayerNormBackward(
    const Tensor&, const Tensor& input, c10::SymIntArrayRef, const Tensor&, const Tensor&,
    const optional<Tensor>& weight, const optional<Tensor>& bias, std::array<bool, 3> wanted) {
  const auto like = [](bool is_wanted, const optional<Tensor>& t) {
    if (!is_wanted || !t || !t->defined()) return Tensor();
    return at::empty_like(*t, at::MemoryFormat::Contiguous);
  };
  return {like(wanted[0], input), like(wanted[1], weight), like(wanted[2], bias)};
}

std::tuple<Tensor, Tensor> NativeDropout(const Tensor& input, double, optional<bool>) {
  return {at::empty_like(input), at::empty_like(input, input.options().dtype(at::kBool))};
}

Tensor NativeDropoutBackward(const Tensor& gradient, const Tensor&, double) {
  return at::empty_like(gradient);
}

Tensor Relu(const Tensor& self) {
  return at::empty_like(self);
}

Tensor MseLossBackward(const Tensor&, const Tensor& self, const Tensor&, int64_t) {
  return at::empty_like(self);
}

Tensor Flip(const Tensor& self, at::IntArrayRef) {
  return at::empty_like(self);
}

void FusedAdamW(at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                at::TensorList, double, double, double, double, double, bool, bool,
                const optional<Tensor>&, const optional<Tensor>&) {}

// Query [batch, heads, queries, size]; its gradient lies as [batch, queries, heads, size].
std::tuple<Tensor, Tensor> FlashAttentionForCpu(const Tensor& query, const Tensor&, const Tensor&,
                                                double, bool, const optional<Tensor>&,
                                                optional<double>) {
  const int64_t batch = query.size(0), heads = query.size(1), queries = query.size(2);
  const auto accumulate = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {at::empty_like(query),
          at::empty({batch, queries, heads}, query.options().dtype(accumulate)).transpose(1, 2)};
}

std::tuple<Tensor, Tensor, Tensor> FlashAttentionForCpuBackward(
    const Tensor&, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor&,
    const Tensor&, double, bool, const optional<Tensor>&, optional<double>) {
  const auto gradient = [](const Tensor& t) {
    return at::empty({t.size(0), t.size(2), t.size(1), t.size(3)}, t.options()).transpose(1, 2);
  };
  return {gradient(query), gradient(key), gradient(value)};
}

// A CPU tensor with the metadata of `t` and no memory, to ask a function that reads no element.
Tensor Phantom(const Tensor& t) {
  Tensor phantom =
      at::from_blob(nullptr, t.sizes(), t.strides(), at::TensorOptions().dtype(t.scalar_type()));
  if (t.requires_grad()) phantom.set_requires_grad(true);
  return phantom;
}

// Note [Attention on Meta]
// torch's own choice for Meta is always the math path, which keeps the attention weights. Here the
// CPU is asked, about tensors without memory, so that the conditions stand in torch alone.
Tensor ScaledDotProductAttention(const Tensor& query, const Tensor& key, const Tensor& value,
                                 const optional<Tensor>& attn_mask, double dropout_p,
                                 bool is_causal, optional<double> scale, bool enable_gqa) {
  constexpr int64_t kFlash = 1;  // sdp::SDPBackend::flash_attention
  optional<Tensor> mask = attn_mask, phantom_mask;
  if (attn_mask && attn_mask->defined()) phantom_mask = Phantom(*attn_mask);
  const int64_t choice =
      at::_fused_sdp_choice(Phantom(query), Phantom(key), Phantom(value), phantom_mask, dropout_p,
                            is_causal, scale, enable_gqa);
  if (phantom_mask && attn_mask->scalar_type() == at::kBool) {
    mask = at::where(at::logical_not(*attn_mask), -std::numeric_limits<double>::infinity(),
                     at::scalar_tensor(0.0, query.options()));
  }
  if (choice == kFlash) {
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout_p,
                                                                       is_causal, mask, scale));
  }
  return std::get<0>(at::_scaled_dot_product_attention_math(
      query, key, value, mask, dropout_p, is_causal, std::nullopt, scale, enable_gqa));
}

// Owns the registrations: they end with it.
class Registrations {
 public:
  explicit Registrations(c10::DispatchKey key)
      : key_(key), library_(torch::Library::IMPL, "aten", key, __FILE__, __LINE__) {}

  // `name` with its overload, such as "where.self".
  template <class Function>
  void Add(const std::string& name, Function function) {
    const size_t dot = name.find('.');
    const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
    const auto schema =
        c10::Dispatcher::singleton().findSchema({"aten::" + name.substr(0, dot), overload});
    TORCH_INTERNAL_ASSERT(schema.has_value(), "no operator aten::", name);
    if (!schema->hasKernelForDispatchKey(key_)) library_.impl(name.c_str(), function);
  }

 private:
  c10::DispatchKey key_;
  torch::Library library_;
};

std::unique_ptr<std::array<Registrations, 2>> Install() {
  auto all = std::unique_ptr<std::array<Registrations, 2>>(new std::array<Registrations, 2>{
      Registrations(c10::DispatchKey::Meta), Registrations(c10::DispatchKey::AutogradMeta)});
  auto& [meta, autograd] = *all;
  meta.Add("where.self", TORCH_FN(Where));
  meta.Add("where.self_out", TORCH_FN(WhereOut));
  meta.Add("logical_not.out", TORCH_FN(LogicalNotOut));
  meta.Add("index_select", TORCH_FN(IndexSelect));
  meta.Add("embedding_dense_backward", TORCH_FN(EmbeddingDenseBackward));
  meta.Add("native_layer_norm", TORCH_FN(NativeLayerNorm));
  meta.Add("native_layer_norm_backward", TORCH_FN(NativeLayerNormBackward));
  meta.Add("native_dropout", TORCH_FN(NativeDropout));
  meta.Add("native_dropout_backward", TORCH_FN(NativeDropoutBackward));
  meta.Add("relu", TORCH_FN(Relu));
  meta.Add("mse_loss_backward", TORCH_FN(MseLossBackward));
  meta.Add("flip", TORCH_FN(Flip));
  meta.Add("abs.out", TORCH_FN(AbsOut));
  meta.Add("_fused_adamw_", TORCH_FN(FusedAdamW));
  meta.Add("_scaled_dot_product_flash_attention_for_cpu", TORCH_FN(FlashAttentionForCpu));
  meta.Add("_scaled_dot_product_flash_attention_for_cpu_backward",
           TORCH_FN(FlashAttentionForCpuBackward));
  // A composite: its parts do the differentiation, with gradients wanted and without.
  meta.Add("scaled_dot_product_attention", TORCH_FN(ScaledDotProductAttention));
  autograd.Add("scaled_dot_product_attention", TORCH_FN(ScaledDotProductAttention));
  return all;
}

}  // namespace

void InstallMetaKernels() {
  // Never destroyed: the dispatcher may be gone before a static object at exit.
  static const auto* const installed = Install().release();
  static_cast<void>(installed);
}

}  // namespace ullage::torchx
