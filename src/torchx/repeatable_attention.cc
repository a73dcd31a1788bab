// Attention on CUDA whose backward gives the same bits each time.
//
// Note [Repeatable attention]
// Measured on an H200 with torch 2.11.0 (16 x 32 heads x 512 tokens, bf16, causal): the gradient of
// the query differs between runs of one backward pass with the flash kernel (100 of 100), with
// cuDNN's (3 to 5 of 40 at head size 64, some at most sizes) and with the memory-efficient one
// (4 of 40 at 64); forward never does. The flash and the memory-efficient kernels have a repeatable
// form, which torch uses only in its strict deterministic mode; it costs 1 to 3 % of the kernel.
// That mode cannot be on for good: operators without such a form refuse to run in it. So it is on
// for the time of these two operators, which replace torch's own in the dispatcher. cuDNN's has no
// such form and is not used.
#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward_native.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward_native.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <tuple>
#include <vector>

#include "torchx/device.h"

namespace ullage::torchx {
namespace {

class StrictlyDeterministic {
 public:
  StrictlyDeterministic()
      : context_(at::globalContext()),
        was_on_(context_.deterministicAlgorithms()),
        only_warned_(context_.deterministicAlgorithmsWarnOnly()),
        filled_(context_.deterministicFillUninitializedMemory()) {
    context_.setDeterministicAlgorithms(true, /*warn_only=*/false);
    context_.setDeterministicFillUninitializedMemory(false);
  }
  ~StrictlyDeterministic() {
    context_.setDeterministicAlgorithms(was_on_, only_warned_);
    context_.setDeterministicFillUninitializedMemory(filled_);
  }
  StrictlyDeterministic(const StrictlyDeterministic&) = delete;
  StrictlyDeterministic& operator=(const StrictlyDeterministic&) = delete;

 private:
  at::Context& context_;
  const bool was_on_, only_warned_, filled_;
};

std::tuple<at::Tensor, at::Tensor, at::Tensor> FlashBackward(
    const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
    const at::Tensor& value, const at::Tensor& out, const at::Tensor& logsumexp,
    const at::Tensor& cum_seq_q, const at::Tensor& cum_seq_k, std::int64_t max_q,
    std::int64_t max_k, double dropout, bool is_causal, const at::Tensor& philox_seed,
    const at::Tensor& philox_offset, std::optional<double> scale) {
  const StrictlyDeterministic strictly;
  return at::native::_scaled_dot_product_flash_attention_backward_cuda(
      gradient, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout,
      is_causal, philox_seed, philox_offset, scale);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> EfficientBackward(
    const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
    const at::Tensor& value, const at::Tensor& bias, const at::Tensor& out,
    const at::Tensor& logsumexp, const at::Tensor& philox_seed, const at::Tensor& philox_offset,
    double dropout, std::array<bool, 4> wanted, bool is_causal, std::optional<double> scale) {
  const StrictlyDeterministic strictly;
  return at::native::_scaled_dot_product_efficient_attention_backward_cuda(
      gradient, query, key, value, bias, out, logsumexp, philox_seed, philox_offset, dropout,
      wanted, is_causal, scale);
}

// torch warns when an operator is replaced.
class Silence final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

}  // namespace

void PreferRepeatableKernels() {
  at::Context& context = at::globalContext();
  context.setSDPUseCuDNN(false);
  std::vector<std::int64_t> order;
  for (const at::SDPBackend backend :
       {at::SDPBackend::flash_attention, at::SDPBackend::efficient_attention, at::SDPBackend::math,
        at::SDPBackend::cudnn_attention, at::SDPBackend::overrideable}) {
    order.push_back(static_cast<std::int64_t>(backend));
  }
  context.setSDPPriorityOrder(order);
  context.setDeterministicCuDNN(true);
  ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);

  static const torch::Library* const replaced = [] {
    Silence silence;
    const c10::WarningUtils::WarningHandlerGuard guard(&silence);
    auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA,
                                       __FILE__, __LINE__);
    library->impl("_scaled_dot_product_flash_attention_backward", TORCH_FN(FlashBackward));
    library->impl("_scaled_dot_product_efficient_attention_backward", TORCH_FN(EfficientBackward));
    return library;  // lives as long as the process
  }();
  static_cast<void>(replaced);
}

}  // namespace ullage::torchx
