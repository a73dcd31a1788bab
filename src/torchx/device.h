// The device that computes: its queues of work, the events that order them, its memory.
//
// On the host every operation is done when the call returns and events are always done, so code
// written against this header runs on both. No CUDA header is needed to use it; without CUDA in
// the build the CUDA side throws UnsupportedError.
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace ullage::torchx {

// Empty when a CUDA device can be used, else why not.
std::string WhyNoCuda();
// The CUDA device that this thread computes on. Throws UnsupportedError with WhyNoCuda().
c10::Device CurrentCuda();

// CUDA devices that this process sees.
int CudaDeviceCount();

// Makes `device` the one of the calling thread, as every thread has to that works on it.
void UseDevice(c10::Device device);

// For CUDA, before the first operator: attention kernels that repeat (Note [Repeatable attention]),
// a fixed cuBLAS workspace, cuDNN's repeatable algorithms. Settings of the process.
void PreferRepeatableKernels();

// A point in a queue of work. Movable; an empty one is done.
class Event {
 public:
  Event() = default;
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event();

  bool IsDone() const;
  // Returns when the work before the event is done. Blocks the calling thread.
  void Wait() const;

 private:
  friend class Queue;
  void* event_ = nullptr;  // from a pool that lives as long as the process
};

// A queue of work that is done in order: a CUDA stream, or nothing on the host.
class Queue {
 public:
  // The host's.
  Queue() = default;
  // The one that operators of the calling thread run in now.
  static Queue OfOperators(c10::Device device);
  // One beside it, for copies and updates that overlap with operators.
  static Queue Beside(c10::Device device);

  // Work that is added later waits for the event.
  void After(const Event& event) const;
  // An event after all work that was added so far.
  Event Mark() const;

  // Between any two places; host memory should be page-locked, or the call waits.
  void Copy(void* to, const void* from, std::int64_t bytes) const;
  void Zero(void* to, std::int64_t bytes) const;
  // `call` runs on a thread of CUDA's when the work before it is done; it must not use CUDA. On the
  // host it runs at once.
  void Call(std::function<void()> call) const;
  // Returns when all work is done.
  void Finish() const;

  bool is_cuda() const { return is_cuda_; }
  void* stream() const { return stream_; }  // cudaStream_t; null is CUDA's default stream

 private:
  Queue(void* stream, bool is_cuda) : stream_(stream), is_cuda_(is_cuda) {}

  void* stream_ = nullptr;
  bool is_cuda_ = false;
};

// Device memory through torch's caching allocator, so that its statistics count it. Not filled.
// Null when the device has no room. Takes a multiple of 512 bytes.
void* AllocateDevice(std::int64_t bytes);
void FreeDevice(void* data);
// The most bytes that torch's allocator had given out on the current device, and what
// AllocateShareable has given out now.
std::int64_t DeviceBytesPeak();

// Page-locks host memory for fast copies. Empty, or why it was refused.
std::string LockHostMemory(void* data, std::size_t bytes);
// The same for memory that this process may only read.
std::string LockReadOnlyHostMemory(const void* data, std::size_t bytes);
void UnlockHostMemory(const void* data);

// Device memory that other processes of this host can map (CUDA IPC). It comes from the device
// itself, so torch's statistics do not count it. Zero-filled. Null when the device has no room.
void* AllocateShareable(std::int64_t bytes);
void FreeShareable(void* data, std::int64_t bytes);
// What tells another process where such memory is. Sent as bytes.
using DeviceHandle = std::array<std::byte, 64>;
DeviceHandle HandleOf(void* data);
// Maps memory of another process. It must be closed before its owner frees it. Throws
// UnsupportedError when this device cannot reach the other.
void* OpenPeerMemory(const DeviceHandle& handle);
void ClosePeerMemory(void* data);

}  // namespace ullage::torchx
