// What operators ask of a machine, as their shapes tell it: multiplications, and bytes that pass.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace ullage::torchx {

struct OperatorWork {
  enum class Kind : std::uint8_t {
    kPass,     // reads its inputs and writes its results, nothing else of note
    kProduct,  // batch x [rows, inner] x [inner, columns]
    // Attention: of each head [rows, inner] x [inner, columns], and back to [rows, inner]. The
    // gradient is that of all three inputs.
    kFlash,
    kFlashGradient,
    kEfficient,
    kEfficientGradient,
  };
  Kind kind = Kind::kPass;
  c10::ScalarType type = c10::ScalarType::Float;
  // Attention.
  bool is_causal = false;
  bool has_dropout = false;
  std::int64_t batch = 0, rows = 0, columns = 0, inner = 0;
  std::int64_t bytes = 0;  // read and written
};

class WorkListener {
 public:
  virtual ~WorkListener() = default;
  virtual void Worked(const OperatorWork& work) = 0;
  // Bytes of tensors that operators have allocated so far.
  virtual std::int64_t allocated() const = 0;
};

}  // namespace ullage::torchx
