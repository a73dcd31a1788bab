#include "models/dropout.h"

#include <ATen/Dispatch.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "kernels/device.h"
#include "models/dropout_mask.h"
#include "torchx/device.h"
#include "torchx/dtype.h"
#include "torchx/operator_watch.h"

namespace ullage::models {
namespace {

// Elements whose factors are computed at a time, on the stack.
constexpr std::int64_t kBlock = 1024;

template <class T>
void MultiplyByFactors(const T* input, T* output, std::int64_t first, std::int64_t count,
                       std::uint64_t seed, double p) {
  const std::uint32_t threshold = DropThreshold(p);
  const auto scale = static_cast<float>(1.0 / (1.0 - p));
  float factors[kBlock];
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t part = std::min(kBlock, count - begin);
    DropoutFactors(seed, static_cast<std::uint64_t>(first + begin), threshold, scale, factors,
                   static_cast<std::size_t>(part));
    for (std::int64_t i = 0; i < part; ++i) {
      output[begin + i] = static_cast<T>(static_cast<float>(input[begin + i]) * factors[i]);
    }
  }
}

class DropoutFunction final : public torch::autograd::Function<DropoutFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            double p) {
    const Drop drop(p);
    drop.Save(*context);
    const at::Tensor input = x.contiguous();
    at::Tensor output = at::empty_like(input);
    ApplyDropoutMask(input, drop, output);
    return output;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const Drop drop(*context);
    const at::Tensor gradient = gradients[0].contiguous();
    at::Tensor result = at::empty_like(gradient);
    ApplyDropoutMask(gradient, drop, result);
    return {result, at::Tensor()};
  }
};

}  // namespace

Drop::Drop(torch::autograd::AutogradContext& context)
    : p(context.saved_data["p"].toDouble()),
      seed{static_cast<std::uint64_t>(context.saved_data["seed"].toInt()),
           reinterpret_cast<const std::uint64_t*>(context.saved_data["place"].toInt())} {}

void Drop::Save(torch::autograd::AutogradContext& context) const {
  context.saved_data["p"] = p;
  context.saved_data["seed"] = static_cast<std::int64_t>(seed.value);
  context.saved_data["place"] = reinterpret_cast<std::int64_t>(seed.place);
}

kernels::DropoutKey Drop::Key() const {
  if (p == 0) return {};
  return {seed.value, DropThreshold(p), static_cast<float>(1.0 / (1.0 - p)), seed.place};
}

void ApplyDropoutMask(const at::Tensor& input, const Drop& drop, at::Tensor& output) {
  if (input.is_meta()) torchx::NoteKernel({input, output});
  if (input.is_meta() || input.numel() == 0) return;
  TORCH_INTERNAL_ASSERT(input.is_contiguous() && output.is_contiguous());
  if (input.is_cuda()) {
    return kernels::device::DropoutMask(torchx::FromTorch(input.scalar_type()),
                                        input.const_data_ptr(), output.mutable_data_ptr(),
                                        /*first=*/0, input.numel(), drop.Key(),
                                        torchx::Queue::OfOperators(input.device()).stream());
  }
  // The iterator splits the elements over torch's own threads; the index follows from the address.
  auto iterator = at::TensorIteratorConfig()
                      .add_output(output)
                      .add_const_input(input)
                      .resize_outputs(false)
                      .build();
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, input.scalar_type(), "ullage_dropout", [&] {
        const auto* base = output.const_data_ptr<scalar_t>();
        iterator.for_each([&](char** data, const std::int64_t* strides, std::int64_t count) {
          TORCH_INTERNAL_ASSERT(count == 1 || strides[0] == sizeof(scalar_t));
          auto* out = reinterpret_cast<scalar_t*>(data[0]);
          MultiplyByFactors(reinterpret_cast<const scalar_t*>(data[1]), out, out - base, count,
                            drop.seed.value, drop.p);
        });
      });
}

at::Tensor Dropout(const at::Tensor& x, double p) {
  if (p == 0) return x;
  return DropoutFunction::apply(x, p);
}

}  // namespace ullage::models
