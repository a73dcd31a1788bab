// The host's side of device.h in a build without CUDA.
#include <cstring>
#include <utility>

#include "torchx/device.h"
#include "ullage/error.h"

namespace ullage::torchx {
namespace {

[[noreturn]] void Refuse() {
  throw UnsupportedError(WhyNoCuda(), "build where nvcc is found, or use --device cpu");
}

}  // namespace

std::string WhyNoCuda() {
  return "this ullage was built without CUDA";
}
c10::Device CurrentCuda() {
  Refuse();
}

int CudaDeviceCount() {
  return 0;
}
void UseDevice(c10::Device) {}
void PreferRepeatableKernels() {}

Event::Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
Event& Event::operator=(Event&& other) noexcept {
  std::swap(event_, other.event_);
  return *this;
}
Event::~Event() = default;
bool Event::IsDone() const {
  return true;
}
void Event::Wait() const {}

Queue Queue::OfOperators(c10::Device device) {
  if (device.is_cuda()) Refuse();
  return {};
}
Queue Queue::Beside(c10::Device device) {
  return OfOperators(device);
}
void Queue::After(const Event&) const {}
Event Queue::Mark() const {
  return {};
}
void Queue::Copy(void* to, const void* from, std::int64_t bytes) const {
  if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}
void Queue::Zero(void* to, std::int64_t bytes) const {
  if (bytes > 0) std::memset(to, 0, static_cast<std::size_t>(bytes));
}
void Queue::Call(std::function<void()> call) const {
  call();
}
void Queue::Finish() const {}

void* AllocateDevice(std::int64_t) {
  Refuse();
}
void FreeDevice(void*) {}
std::int64_t DeviceBytesPeak() {
  return 0;
}
std::string LockHostMemory(void*, std::size_t) {
  return WhyNoCuda();
}
std::string LockReadOnlyHostMemory(const void*, std::size_t) {
  return WhyNoCuda();
}
void UnlockHostMemory(const void*) {}
void* AllocateShareable(std::int64_t) {
  Refuse();
}
void FreeShareable(void*, std::int64_t) {}
DeviceHandle HandleOf(void*) {
  Refuse();
}
void* OpenPeerMemory(const DeviceHandle&) {
  Refuse();
}
void ClosePeerMemory(void*) {}

}  // namespace ullage::torchx
