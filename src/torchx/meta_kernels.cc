#include "torchx/meta_kernels.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add_meta_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/result_type.h>
#include <c10/core/Allocator.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "torchx/attention_on_meta.h"
#include "torchx/norm_on_meta.h"
#include "torchx/operator_watch.h"
#include "torchx/stand_in.h"
#include "torchx/sum_on_meta.h"

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

// Not by resizing an empty one, which the count of bytes would miss (torchx/storage_watch.h).
Tensor Where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  Tensor out;
  at::TensorIteratorConfig config;
  config.check_all_same_dtype(false)
      .declare_static_dtype_and_device(at::result_type(a, b), at::kMeta)
      .add_output(out);
  for (const Tensor& input : {condition, a, b}) config.add_owned_const_input(input);
  return config.build().output();
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

// Mean and reciprocal deviation are fp32 on CUDA, and where 16-bit input meets fp32 weights.
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
  if (ComputesOnCuda(input) || is_float(weight) || is_float(bias))
    statistics = statistics.dtype(at::kFloat);
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

Tensor& AddMatrixProductOut(const Tensor&, const Tensor&, const Tensor&, at::ScalarType,
                            const at::Scalar&, const at::Scalar&, Tensor& out) {
  return out;
}

void FusedAdamW(at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                at::TensorList, double, double, double, double, double, bool, bool,
                const optional<Tensor>&, const optional<Tensor>&) {}

bool IsNarrow(const Tensor& t) {
  return t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16;
}

// Rows and columns of scores that a thread of the CPU's flash kernel has at a time.
std::pair<int64_t, int64_t> FlashTile(const Tensor& query, const Tensor& key) {
  const int64_t queries = query.size(2);
  const int64_t rows = queries >= 768 ? 256 : queries >= 192 ? 64 : 32;
  return {std::min(rows, queries), std::min<int64_t>(512, key.size(2))};
}

// Query [batch, heads, queries, size]; its gradient lies as [batch, queries, heads, size].
std::tuple<Tensor, Tensor> FlashAttentionForCpu(const Tensor& query, const Tensor& key,
                                                const Tensor&, double, bool,
                                                const optional<Tensor>&, optional<double>) {
  const int64_t batch = query.size(0), heads = query.size(1), queries = query.size(2);
  const auto accumulate = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto [rows, columns] = FlashTile(query, key);
  const int64_t threads = at::get_num_threads();
  const Tensor scratch = at::empty({threads, rows * columns + 2 * rows + rows * query.size(3)},
                                   query.options().dtype(accumulate));
  const Tensor narrow = at::empty({threads, IsNarrow(query) ? rows * columns : 0}, query.options());
  return {at::empty_like(query),
          at::empty({batch, queries, heads}, query.options().dtype(accumulate)).transpose(1, 2)};
}

std::tuple<Tensor, Tensor, Tensor> FlashAttentionForCpuBackward(
    const Tensor&, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor&,
    const Tensor&, double, bool, const optional<Tensor>&, optional<double>) {
  const auto [rows, columns] = FlashTile(query, key);
  const int64_t threads = at::get_num_threads();
  const auto accumulate = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor scores = at::empty({threads, 2 * rows * columns}, query.options().dtype(accumulate));
  const Tensor narrow =
      at::empty({threads, IsNarrow(query) ? 2 * rows * columns : 0}, query.options());
  const Tensor deltas = at::empty({threads, rows}, query.options().dtype(accumulate));
  const auto gradient = [](const Tensor& t) {
    return at::empty({t.size(0), t.size(2), t.size(1), t.size(3)}, t.options()).transpose(1, 2);
  };
  return {gradient(query), gradient(key), gradient(value)};
}

// Note [What Meta does otherwise]
// Operators of torch's own that differ on Meta in what they allocate are replaced.
//
// Resizing sets the size of a storage and asks no allocator, so that bytes would not be counted.
const Tensor& Resize(const Tensor& self, c10::SymIntArrayRef size,
                     optional<at::MemoryFormat> format) {
  const std::size_t before = self.storage().nbytes();
  const Tensor& resized = at::native::resize__symint(self, size, format);
  const std::size_t bytes = self.storage().nbytes();
  if (bytes > before) {
    self.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
        c10::GetAllocator(c10::kMeta)->allocate(bytes));
  }
  return resized;
}

// Where gradients meet, autograd adds the later to the earlier in its place if nobody else holds
// that, but not on Meta.
Tensor Add(const Tensor& self, const Tensor& other, const at::Scalar& alpha) {
  if (OperatorWatch::IsBetweenNodes() && self.use_count() == 1 && self.has_storage() &&
      self.storage().use_count() == 1 && self.is_non_overlapping_and_dense() &&
      self.sizes() == other.sizes() && self.scalar_type() == other.scalar_type()) {
    return self;
  }
  return at::meta::add(self, other, alpha);
}

// Owns the registrations: they end with it.
class Registrations {
 public:
  // `replacing`: also where there is a kernel already.
  Registrations(c10::DispatchKey key, bool replacing)
      : key_(key),
        replacing_(replacing),
        library_(torch::Library::IMPL, "aten", key, __FILE__, __LINE__) {}

  // `name` with its overload, such as "where.self".
  template <class Function>
  void Add(const std::string& name, Function function) {
    const size_t dot = name.find('.');
    const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
    const auto schema =
        c10::Dispatcher::singleton().findSchema({"aten::" + name.substr(0, dot), overload});
    TORCH_INTERNAL_ASSERT(schema.has_value(), "no operator aten::", name);
    if (replacing_ || !schema->hasKernelForDispatchKey(key_)) library_.impl(name.c_str(), function);
  }

 private:
  const c10::DispatchKey key_;
  const bool replacing_;
  torch::Library library_;
};

// torch warns when an operator is replaced.
class Silence final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

using Kernels = std::array<Registrations, 2>;

std::unique_ptr<Kernels> Install(bool replacing) {
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard guard(&silence);
  auto all = std::unique_ptr<Kernels>(
      new Kernels{Registrations(c10::DispatchKey::Meta, replacing),
                  Registrations(c10::DispatchKey::AutogradMeta, replacing)});
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
  meta.Add("addmm.dtype_out", TORCH_FN(AddMatrixProductOut));
  meta.Add("_fused_adamw_", TORCH_FN(FusedAdamW));
  meta.Add("_scaled_dot_product_flash_attention_for_cpu", TORCH_FN(FlashAttentionForCpu));
  meta.Add("_scaled_dot_product_flash_attention_for_cpu_backward",
           TORCH_FN(FlashAttentionForCpuBackward));
  if (replacing) {
    meta.Add("resize_", TORCH_FN(Resize));
    meta.Add("add.Tensor", TORCH_FN(Add));
    meta.Add("sum.dim_IntList", TORCH_FN(SumOnMeta));
  }
  // A composite: its parts do the differentiation, with gradients wanted and without.
  meta.Add("scaled_dot_product_attention", TORCH_FN(AttentionOnMeta));
  autograd.Add("scaled_dot_product_attention", TORCH_FN(AttentionOnMeta));
  meta.Add("_fused_rms_norm", TORCH_FN(RmsNormOnMeta));
  autograd.Add("_fused_rms_norm", TORCH_FN(RmsNormOnMeta));
  return all;
}

}  // namespace

void InstallMetaKernels() {
  // Never destroyed: the dispatcher may be gone before a static object at exit.
  static const auto* const installed = Install(/*replacing=*/false).release();
  static_cast<void>(installed);
}

struct CountedOnMeta::Held {
  std::unique_ptr<Kernels> kernels = Install(/*replacing=*/true);
};

CountedOnMeta::CountedOnMeta() : held_(std::make_unique<Held>()) {}
CountedOnMeta::~CountedOnMeta() = default;

}  // namespace ullage::torchx
