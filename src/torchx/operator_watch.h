// Tells which operator runs, and which parameter was used last: where in a model bytes are made.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <unordered_map>
#include <vector>

#include "torchx/operator_work.h"

namespace at {
class Tensor;
}

namespace ullage::torchx {

// Where the current thread is, while a watch lives.
struct Site {
  std::int32_t operation = -1;  // index into OperatorWatch::operations(); -1: none
  std::int32_t parameter = -1;  // the caller's index; -1: none was used yet
};

// Of the current thread: whether it is in a backward pass, and whether operators are recorded.
bool IsInBackward();
bool RecordsGradients();

// A kernel of ours, which the dispatcher does not know, reads or writes these. For a dry run.
void NoteKernel(std::initializer_list<at::Tensor> tensors);
void NoteKernel(const OperatorWork& work);

class OperatorWatch {
 public:
  OperatorWatch();  // of the current thread, which has no other
  ~OperatorWatch();
  OperatorWatch(const OperatorWatch&) = delete;
  OperatorWatch& operator=(const OperatorWatch&) = delete;

  // From now on a use of a tensor that shares its storage counts as one of `parameter`.
  void Name(const at::Tensor& tensor, std::int32_t parameter);
  Site site() const { return site_; }
  // From now on `listener`, which outlives this, hears what operators do. Null: nobody does.
  void Tell(WorkListener* listener) { listener_ = listener; }
  // Operators, and nodes of the graph, that the dispatcher and autograd have called so far: each
  // takes the CPU's time.
  std::int64_t calls() const { return calls_; }
  // Whether the current thread, where a watch follows it, is in a backward pass but in no node of
  // the graph: there autograd adds up gradients that meet.
  static bool IsBetweenNodes();
  const std::vector<std::string>& operations() const { return operations_; }

 private:
  struct Hooks;
  friend void NoteKernel(const OperatorWork& work);

  std::int32_t IndexOf(const char* name);

  std::uint64_t handle_ = 0;
  Site site_;
  bool is_between_nodes_ = false;
  WorkListener* listener_ = nullptr;
  std::int64_t calls_ = 0;
  std::int64_t worked_ = 0;  // told to the listener
  int in_kernel_ = 0;
  std::vector<std::string> operations_;
  std::unordered_map<std::string, std::int32_t> index_;
  std::unordered_map<const void*, std::int32_t> parameters_;  // by storage
};

}  // namespace ullage::torchx
