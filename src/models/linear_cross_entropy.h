// The loss head of a language model without its logits: linear map and cross-entropy together.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace ullage::models {

constexpr std::int64_t kIgnoredLabel = -100;

// How the loss head computes: a part of the formulation, since it fixes the order of sums.
struct LossHeadForm {
  std::int64_t chunk = 0;  // rows whose logits exist at the same time
  // Whether ignored rows are dropped before the product. The host must then know how many they
  // are, and would wait for a device; else they take part with weight zero.
  bool drops_ignored = false;
  // Rows that are ignored whatever the labels are. Only on Meta, where nothing else is known.
  std::int64_t ignored_at_least = 0;
};

// On the CPU chunks of 2^22 logits, and ignored rows are dropped. On CUDA chunks of 2^25 logits, so
// that products are large, and no row is dropped. At least 16 rows. Meta does as what it stands for
// (torchx/stand_in.h).
LossHeadForm FormOfLossHead(std::int64_t vocab_size, c10::Device device);

// The sum of cross_entropy(hidden weight', targets) over the rows whose target is not
// kIgnoredLabel: an fp32 scalar. `hidden` [rows, width], `weight` [vocabulary, width] of the same
// dtype, `targets` [rows] int64 from 0 to vocabulary - 1, or kIgnoredLabel.
//
// Logits are rounded to the dtype as a linear map would; softmax and loss are fp32. No more than
// three tensors of chunk * vocabulary exist at once. Both gradients are computed in forward, where
// gradients are wanted; backward multiplies them by the loss's. The weight's is added up in fp32
// over the chunks whatever its dtype: in 16 bit each chunk would round it again. That costs 4 bytes
// for each weight from here to backward, which follows at once.
at::Tensor LinearCrossEntropy(const at::Tensor& hidden, const at::Tensor& weight,
                              const at::Tensor& targets, LossHeadForm form);

}  // namespace ullage::models
