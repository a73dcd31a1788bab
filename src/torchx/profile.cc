#include "torchx/profile.h"

#include <ATen/record_function.h>
#include <fmt/format.h>

#include <utility>

namespace ullage::torchx {

ProfilerRange::ProfilerRange(std::string_view name, int unit) {
  auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
  if (!callbacks.has_value()) return;
  function_ = std::make_unique<at::RecordFunction>(std::move(*callbacks));
  function_->before(unit < 0 ? fmt::format("ullage::{}", name)
                             : fmt::format("ullage::{} {}", name, unit));
}

ProfilerRange::~ProfilerRange() = default;

}  // namespace ullage::torchx
