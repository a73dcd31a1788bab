// What an operator's schema says, and what it hides, about the bytes of its arguments.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

namespace ullage::torchx {

struct OperatorTraits {
  std::string name;            // "aten::linear"
  std::vector<bool> writes;    // for each argument: may its bytes change?
  std::vector<bool> alias;     // for each argument: does a result share its storage?
  bool is_view = false;        // results alias an argument and nothing is written
  bool reads_other = false;    // a view that also reads a tensor by value (tensor_split)
  bool is_metadata = false;    // looks at shapes only
  bool calls_others = false;   // takes many weights and works through other operators
  bool is_foreign = false;     // not aten or prims: may do anything to anything
  bool is_collective = false;  // c10d
};

// Cached; the reference stays valid for the life of the process. Thread-safe.
const OperatorTraits& TraitsOf(const c10::OperatorHandle& op);

// Lets the dispatcher skip the interception key for operators that never look at bytes: views
// and metadata. Idempotent. Halves the number of interceptions.
void InstallFallthroughs();

}  // namespace ullage::torchx
