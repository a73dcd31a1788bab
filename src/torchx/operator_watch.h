// Tells which operator runs, and which parameter was used last: where in a model bytes are made.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

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

class OperatorWatch {
 public:
  OperatorWatch();  // of the current thread, which has no other
  ~OperatorWatch();
  OperatorWatch(const OperatorWatch&) = delete;
  OperatorWatch& operator=(const OperatorWatch&) = delete;

  // From now on a use of a tensor that shares its storage counts as one of `parameter`.
  void Name(const at::Tensor& tensor, std::int32_t parameter);
  Site site() const { return site_; }
  // Whether the current thread, where a watch follows it, is in a backward pass but in no node of
  // the graph: there autograd adds up gradients that meet.
  static bool IsBetweenNodes();
  const std::vector<std::string>& operations() const { return operations_; }

 private:
  struct Hooks;

  std::int32_t IndexOf(const char* name);

  std::uint64_t handle_ = 0;
  Site site_;
  bool is_between_nodes_ = false;
  std::vector<std::string> operations_;
  std::unordered_map<std::string, std::int32_t> index_;
  std::unordered_map<const void*, std::int32_t> parameters_;  // by storage
};

}  // namespace ullage::torchx
