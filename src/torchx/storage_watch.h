// Follows what torch allocates for tensors: on Meta, where a dry run is to tell what a run would
// hold, and on the devices where that is checked.
#pragma once

#include <c10/core/DeviceType.h>

#include <cstdint>
#include <memory>

namespace ullage::torchx {

class StorageListener {
 public:
  virtual ~StorageListener() = default;
  // `storage` tells the bytes apart from all others that are held at the same time. On Meta and the
  // CPU `bytes` are those that were asked for, on CUDA those of the block that was given.
  virtual void Allocated(const void* storage, std::int64_t bytes) = 0;
  // Also for what was allocated before the watch, on a CPU and on CUDA.
  virtual void Freed(const void* storage) = 0;
};

// For its life, what the current thread allocates on devices of `type` (Meta, CPU or CUDA) is told
// to `listener`, and what backward passes that it starts allocate on threads of autograd's, perhaps
// at the same time as this one. One watch for each thread; torch's profiler cannot record
// memory on the thread meanwhile.
class StorageWatch {
 public:
  StorageWatch(c10::DeviceType type, StorageListener& listener);
  ~StorageWatch();
  StorageWatch(const StorageWatch&) = delete;
  StorageWatch& operator=(const StorageWatch&) = delete;

 private:
  struct Report;
  std::unique_ptr<Report> report_;
};

}  // namespace ullage::torchx
