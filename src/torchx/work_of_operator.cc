#include "torchx/work_of_operator.h"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <string_view>

namespace ullage::torchx {
namespace {

// Those that allocate or make views do nothing with bytes. Of the others only those that need to be
// told from them are here.
bool IsProduct(std::string_view name) {
  return name == "aten::mm" || name == "aten::addmm" || name == "aten::addmm_" ||
         name == "aten::bmm" || name == "aten::baddbmm" || name == "aten::_addmm_activation";
}

// They have a kernel of their own, whatever their form on Meta is made of.
bool IsKernel(std::string_view name) {
  return IsProduct(name) || name.starts_with("aten::native_layer_norm") ||
         name.starts_with("aten::native_dropout") || name.starts_with("aten::_fused_rms_norm") ||
         name.find("softmax") != std::string_view::npos || name.starts_with("aten::nll_loss");
}

bool IsAllocation(std::string_view name) {
  return name.starts_with("aten::empty") || name.starts_with("aten::resize") ||
         name.starts_with("aten::new_empty") || name.starts_with("aten::set_");
}

bool ReadsRows(std::string_view name) {
  return name == "aten::embedding" || name == "aten::index_select" || name == "aten::gather" ||
         name == "aten::index";
}

bool OnlyWrites(std::string_view name) {
  return name == "aten::copy_" || name == "aten::zero_" || name == "aten::fill_";
}

std::int64_t BytesOf(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return 0;
  const auto bytes = static_cast<std::int64_t>(tensor.nbytes());
  return std::min(bytes, static_cast<std::int64_t>(tensor.storage().nbytes()));  // of an expansion
}

template <typename Visit>
void VisitTensors(c10::ArrayRef<const c10::IValue> values, const Visit& visit) {
  for (const c10::IValue& value : values) {
    if (value.isTensor()) {
      visit(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
    }
  }
}

void SetProduct(const at::Tensor& left, const at::Tensor& right, OperatorWork& work) {
  if (left.dim() < 2 || right.dim() < 2) return;
  work.kind = OperatorWork::Kind::kProduct;
  work.type = left.scalar_type();
  work.batch = left.dim() > 2 ? left.size(0) : 1;
  work.rows = left.size(-2);
  work.inner = left.size(-1);
  work.columns = right.size(-1);
}

}  // namespace

WorkOfOperator::WorkOfOperator(const at::RecordFunction& function)
    : is_kernel_(IsKernel(function.name())), reads_rows_(ReadsRows(function.name())) {
  const std::string_view name = function.name();
  const auto inputs = function.inputs();
  is_none_ = IsAllocation(name);
  const std::size_t shift = name.starts_with("aten::addmm") || name == "aten::baddbmm" ||
                                    name == "aten::_addmm_activation"
                                ? 1
                                : 0;
  VisitTensors(inputs, [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    read_ += BytesOf(tensor);
    work_.type = tensor.scalar_type();
  });
  if (IsProduct(name) && inputs.size() > shift + 1 && inputs[shift].isTensor()) {
    SetProduct(inputs[shift].toTensor(), inputs[shift + 1].toTensor(), work_);
  }
  if (!name.ends_with('_') || inputs.empty() || !inputs.front().isTensor()) return;
  changed_ = BytesOf(inputs.front().toTensor());
  if (OnlyWrites(name)) read_ -= changed_;
}

std::optional<OperatorWork> WorkOfOperator::End(std::int64_t allocated) const {
  const std::int64_t written = allocated + changed_;
  if (is_none_ || written == 0) return std::nullopt;
  OperatorWork work = work_;
  work.bytes = reads_rows_ ? 2 * written : read_ + written;
  return work;
}

}  // namespace ullage::torchx
