// Meta kernels that torch has only in Python, for dry runs in C++.
#pragma once

#include <memory>

namespace ullage::torchx {

// Registers what a dry run of an ordinary Transformer on Meta tensors (forward, loss, backward,
// with dropout, fp32 or 16 bit) needs beyond torch's C++ kernels. Results have the sizes, strides
// and dtypes that torch's CPU kernels give, and scaled_dot_product_attention takes the path that it
// would take on the CPU. Only operators without a kernel for Meta get one, so that a Python process
// that has loaded torch's own keeps them. May be called any number of times and from any thread;
// what is registered stays for the life of the process.
void InstallMetaKernels();

// For its life Meta allocates what a run would: besides the kernels above, which then come before
// torch's own from Python, those of Note [What Meta does otherwise]. They are for sizes that are
// known, so other work on Meta should wait (torch.compile, say).
class CountedOnMeta {
 public:
  CountedOnMeta();
  ~CountedOnMeta();
  CountedOnMeta(const CountedOnMeta&) = delete;
  CountedOnMeta& operator=(const CountedOnMeta&) = delete;

 private:
  struct Held;
  std::unique_ptr<Held> held_;
};

}  // namespace ullage::torchx
