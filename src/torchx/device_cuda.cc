// Both sides of device.h in a build with CUDA.
#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <atomic>
#include <bit>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "torchx/device.h"
#include "ullage/error.h"

namespace ullage::torchx {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  throw StateError(fmt::format("{}: CUDA says: {}", what, cudaGetErrorString(error)),
                   "an earlier kernel may have failed: CUDA_LAUNCH_BLOCKING=1 tells which");
}

// Events are made once and used again. Never destroyed: when the process ends, CUDA may be gone
// before the last static object.
struct EventPool {
  std::mutex mutex;
  std::vector<cudaEvent_t> free;
};
EventPool& Pool() {
  static auto* pool = new EventPool;
  return *pool;
}

cudaEvent_t TakeEvent() {
  EventPool& pool = Pool();
  {
    std::lock_guard lock(pool.mutex);
    if (!pool.free.empty()) {
      cudaEvent_t event = pool.free.back();
      pool.free.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  Check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
  return event;
}

std::atomic<std::int64_t> shareable_bytes{0};  // of AllocateShareable

cudaStream_t StreamOf(void* stream) {
  return static_cast<cudaStream_t>(stream);
}
cudaEvent_t EventOf(void* event) {
  return static_cast<cudaEvent_t>(event);
}

}  // namespace

std::string WhyNoCuda() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return fmt::format("no CUDA device can be used: {}", cudaGetErrorString(error));
  }
  return count > 0 ? "" : "this machine has no CUDA device";
}

c10::Device CurrentCuda() {
  if (const std::string reason = WhyNoCuda(); !reason.empty()) {
    throw UnsupportedError(reason, "use --device cpu");
  }
  at::globalContext().lazyInitDevice(c10::kCUDA);  // torch's allocator, among others
  return c10::Device(c10::kCUDA, c10::cuda::current_device());
}

int CudaDeviceCount() {
  return WhyNoCuda().empty() ? c10::cuda::device_count() : 0;
}

void UseDevice(c10::Device device) {
  if (device.is_cuda()) c10::cuda::set_device(device.index());
}

Event::Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
Event& Event::operator=(Event&& other) noexcept {
  std::swap(event_, other.event_);
  return *this;
}
Event::~Event() {
  if (event_ == nullptr) return;
  EventPool& pool = Pool();
  std::lock_guard lock(pool.mutex);
  pool.free.push_back(EventOf(event_));
}

bool Event::IsDone() const {
  if (event_ == nullptr) return true;
  const cudaError_t error = cudaEventQuery(EventOf(event_));
  if (error == cudaErrorNotReady) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  Check(error, "asking for an event");
  return true;
}

void Event::Wait() const {
  if (event_ != nullptr) Check(cudaEventSynchronize(EventOf(event_)), "waiting for an event");
}

Queue Queue::OfOperators(c10::Device device) {
  if (!device.is_cuda()) return {};
  return {c10::cuda::getCurrentCUDAStream(device.index()).stream(), true};
}

Queue Queue::Beside(c10::Device device) {
  if (!device.is_cuda()) return {};
  return {c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device.index()).stream(), true};
}

void Queue::After(const Event& event) const {
  if (!is_cuda_ || event.event_ == nullptr) return;
  Check(cudaStreamWaitEvent(StreamOf(stream_), EventOf(event.event_), 0), "ordering two queues");
}

Event Queue::Mark() const {
  Event event;
  if (!is_cuda_) return event;
  event.event_ = TakeEvent();
  Check(cudaEventRecord(EventOf(event.event_), StreamOf(stream_)), "recording an event");
  return event;
}

void Queue::Copy(void* to, const void* from, std::int64_t bytes) const {
  if (bytes <= 0) return;
  const auto size = static_cast<std::size_t>(bytes);
  if (!is_cuda_) {
    std::memcpy(to, from, size);
    return;
  }
  Check(cudaMemcpyAsync(to, from, size, cudaMemcpyDefault, StreamOf(stream_)), "copying");
}

void Queue::Zero(void* to, std::int64_t bytes) const {
  if (bytes <= 0) return;
  const auto size = static_cast<std::size_t>(bytes);
  if (!is_cuda_) {
    std::memset(to, 0, size);
    return;
  }
  Check(cudaMemsetAsync(to, 0, size, StreamOf(stream_)), "filling with zeros");
}

void Queue::Call(std::function<void()> call) const {
  if (!is_cuda_) return call();
  auto held = std::make_unique<std::function<void()>>(std::move(call));
  const auto run = [](void* data) {
    const std::unique_ptr<std::function<void()>> taken(static_cast<std::function<void()>*>(data));
    (*taken)();
  };
  Check(cudaLaunchHostFunc(StreamOf(stream_), run, held.get()), "adding a call to a queue");
  static_cast<void>(held.release());
}

void Queue::Finish() const {
  if (is_cuda_) Check(cudaStreamSynchronize(StreamOf(stream_)), "finishing a queue");
}

void* AllocateDevice(std::int64_t bytes) {
  try {
    return allocator::raw_alloc(static_cast<std::size_t>(bytes));
  } catch (const c10::OutOfMemoryError&) {
    return nullptr;
  }
}

void FreeDevice(void* data) {
  if (data != nullptr) allocator::raw_delete(data);
}

std::int64_t DeviceBytesPeak() {
  const allocator::DeviceStats stats = allocator::getDeviceStats(c10::cuda::current_device());
  return stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)]
             .peak +
         shareable_bytes;
}

std::string LockHostMemory(void* data, std::size_t bytes) {
  const cudaError_t error = cudaHostRegister(data, bytes, cudaHostRegisterPortable);
  if (error == cudaSuccess) return "";
  static_cast<void>(cudaGetLastError());
  return cudaGetErrorString(error);
}

std::string LockReadOnlyHostMemory(const void* data, std::size_t bytes) {
  const cudaError_t error = cudaHostRegister(const_cast<void*>(data), bytes,
                                             cudaHostRegisterPortable | cudaHostRegisterReadOnly);
  if (error == cudaSuccess) return "";
  static_cast<void>(cudaGetLastError());
  return cudaGetErrorString(error);
}

void UnlockHostMemory(const void* data) {
  if (cudaHostUnregister(const_cast<void*>(data)) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
  }
}

void* AllocateShareable(std::int64_t bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, static_cast<std::size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    return nullptr;
  }
  Check(error, "allocating device memory that peers can read");
  shareable_bytes += bytes;
  Check(cudaMemset(data, 0, static_cast<std::size_t>(bytes)), "filling with zeros");
  return data;
}

void FreeShareable(void* data, std::int64_t bytes) {
  if (data == nullptr) return;
  if (cudaFree(data) != cudaSuccess) static_cast<void>(cudaGetLastError());
  shareable_bytes -= bytes;
}

DeviceHandle HandleOf(void* data) {
  cudaIpcMemHandle_t handle;
  static_assert(sizeof(handle) == sizeof(DeviceHandle));
  Check(cudaIpcGetMemHandle(&handle, data), "making device memory known to peers");
  return std::bit_cast<DeviceHandle>(handle);
}

void* OpenPeerMemory(const DeviceHandle& handle) {
  void* data = nullptr;
  const cudaError_t error = cudaIpcOpenMemHandle(&data, std::bit_cast<cudaIpcMemHandle_t>(handle),
                                                 cudaIpcMemLazyEnablePeerAccess);
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    throw UnsupportedError(
        fmt::format("the device memory of another rank cannot be mapped: CUDA says: {}",
                    cudaGetErrorString(error)),
        "ranks on one host need CUDA IPC between their devices: see nvidia-smi topo -p2p r, and in "
        "containers --ipc=host");
  }
  return data;
}

void ClosePeerMemory(void* data) {
  if (data != nullptr && cudaIpcCloseMemHandle(data) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
  }
}

}  // namespace ullage::torchx
