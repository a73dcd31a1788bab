#include "grads/gradient_batch.h"

#include <algorithm>

namespace ullage::grads {

using kernels::device::ArrayPart;

void GradientBatch::Copy(const at::Tensor& gradient, DType dtype, void* to) {
  Hold(gradient, &Work::copies, {dtype, gradient.const_data_ptr(), to, gradient.numel()});
}

void GradientBatch::Add(const at::Tensor& gradient, DType dtype, float* to) {
  Hold(gradient, &Work::additions, {dtype, gradient.const_data_ptr(), to, gradient.numel()});
}

void GradientBatch::Hold(const at::Tensor& gradient, std::vector<ArrayPart> Work::*kind,
                         const ArrayPart& part) {
  // A second gradient for the same sums comes after the first.
  const auto has_target = [&part](const ArrayPart& other) { return other.out == part.out; };
  if (std::ranges::any_of(work_.copies, has_target) ||
      std::ranges::any_of(work_.additions, has_target)) {
    Flush();
  }
  const auto bytes = static_cast<std::int64_t>(gradient.nbytes());
  if (bytes > kSmallBytes) {
    Work alone;
    (alone.*kind).push_back(part);
    return run_(alone);
  }
  if (held_bytes_ + bytes > kHeldBytes) Flush();
  (work_.*kind).push_back(part);
  held_.push_back(gradient);
  held_bytes_ += bytes;
}

void GradientBatch::Flush() {
  if (held_.empty()) return;
  run_(work_);
  Drop();
}

void GradientBatch::Drop() {
  work_.copies.clear();
  work_.additions.clear();
  held_.clear();
  held_bytes_ = 0;
}

}  // namespace ullage::grads
