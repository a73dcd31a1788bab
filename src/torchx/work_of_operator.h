// The work of one operator that torch's dispatcher calls.
#pragma once

#include <cstdint>
#include <optional>

#include "torchx/operator_work.h"

namespace at {
struct RecordFunction;
}

namespace ullage::torchx {

class WorkOfOperator {
 public:
  // When it begins: its inputs are there.
  explicit WorkOfOperator(const at::RecordFunction& function);
  // When it has ended; `allocated` bytes since it began, which are its results. (To look at them
  // would keep them alive beyond their time.) Nothing, if it made a view or no more than allocated.
  std::optional<OperatorWork> End(std::int64_t allocated) const;
  // Whether what it calls in turn is part of one kernel.
  bool is_kernel() const { return is_kernel_; }

 private:
  const bool is_kernel_, reads_rows_;
  bool is_none_ = false;
  std::int64_t changed_ = 0;  // bytes that are written in place
  std::int64_t read_ = 0;
  OperatorWork work_;
};

}  // namespace ullage::torchx
