#include "memory/buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "torchx/device.h"
#include "torchx/device_memory.h"
#include "ullage/error.h"

namespace ullage::memory {
namespace {

constexpr std::int64_t kMappedFrom = 128 << 10;

[[noreturn]] void ThrowOutOfMemory(Ledger& ledger, Tag tag, Tier tier, bool on_cuda,
                                   std::int64_t bytes) {
  std::string held;
  const TagBytes now = ledger.now(tier);
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (now[i] > 0) held += fmt::format(" {} {},", plan::kTagNames[i], FormatBytes(now[i]));
  }
  if (!held.empty()) held.pop_back();
  std::string available;
  if (on_cuda) {
    const torchx::DeviceMemory device = torchx::ReadDeviceMemory();
    available = fmt::format("; {} of the device's {} are free, torch's allocator holds {}",
                            FormatBytes(device.free), FormatBytes(device.total),
                            FormatBytes(device.reserved));
  }
  throw OutOfMemoryError(
      fmt::format("out of {} memory: {} for {} were refused; the engine holds{}{}",
                  on_cuda ? "device" : "host", FormatBytes(bytes), plan::Name(tag),
                  held.empty() ? " nothing" : held, available),
      on_cuda ? "let ullage.device_memory decide what lies on the host, offload with "
                "zero_optimization.offload_optimizer and offload_param, or use more ranks with a "
                "higher zero_optimization.stage"
              : "use more ranks with a higher zero_optimization.stage, or a smaller "
                "ullage.unit_size");
}

}  // namespace

Claim::Claim(Ledger& ledger, Tag tag, plan::BufferBytes bytes, Tier tier)
    : ledger_(&ledger), tag_(tag), bytes_(bytes), tier_(tier) {
  ledger.Add(tag, bytes.used, tier);
  ledger.Add(Tag::kPadding, bytes.padding, tier);
}

Claim::Claim(Claim&& other) noexcept
    : ledger_(std::exchange(other.ledger_, nullptr)),
      tag_(other.tag_),
      bytes_(std::exchange(other.bytes_, {})),
      tier_(other.tier_) {}

Claim& Claim::operator=(Claim&& other) noexcept {
  std::swap(ledger_, other.ledger_);
  std::swap(tag_, other.tag_);
  std::swap(bytes_, other.bytes_);
  std::swap(tier_, other.tier_);
  return *this;
}

Claim::~Claim() {
  if (ledger_ == nullptr) return;
  ledger_->Subtract(tag_, bytes_.used, tier_);
  ledger_->Subtract(Tag::kPadding, bytes_.padding, tier_);
}

Memory::Memory(Place place, bool dry)
    : place_(place),
      dry_(dry),
      device_(dry                     ? c10::Device(c10::kMeta)
              : place == Place::kCuda ? torchx::CurrentCuda()
                                      : c10::Device(c10::kCPU)) {}

Buffer Memory::Allocate(Tag tag, plan::BufferBytes bytes, Tier tier) {
  Buffer buffer;
  const bool on_cuda = OnCuda(tier);
  const std::int64_t total = bytes.total();
  const auto size = static_cast<std::size_t>(total);
  if (total > 0) ++allocations_;
  if (total > 0 && !is_dry()) {
    using enum Buffer::Source;
    void* data = nullptr;
    if (on_cuda) {
      buffer.source_ = kArena;
      if (device_arena_ != nullptr) data = device_arena_(total);
      if (data == nullptr) {
        buffer.source_ = kCuda;
        data = torchx::AllocateDevice(total);
        if (data != nullptr) torchx::Queue::OfOperators(device_).Zero(data, total);
      }
    } else if (tier == Tier::kHost && host_arena_ != nullptr) {
      buffer.source_ = kArena;
      data = host_arena_(total);
    } else if (total >= kMappedFrom) {
      buffer.source_ = kMapping;
      data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (data == MAP_FAILED) data = nullptr;
    } else {
      buffer.source_ = kHeap;
      data = std::aligned_alloc(64, (size + 63) / 64 * 64);
      if (data != nullptr) std::memset(data, 0, size);
    }
    if (data == nullptr) ThrowOutOfMemory(ledger_, tag, tier, on_cuda, total);
    buffer.data_ = static_cast<std::byte*>(data);
  }
  buffer.claim_ = Claim(ledger_, tag, bytes, tier);
  return buffer;
}

Buffer::Buffer(Buffer&& other) noexcept
    : claim_(std::move(other.claim_)),
      data_(std::exchange(other.data_, nullptr)),
      source_(other.source_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(claim_, other.claim_);
  std::swap(data_, other.data_);
  std::swap(source_, other.source_);
  return *this;
}

Buffer::~Buffer() {
  Free();
}

void Buffer::Free() {
  if (data_ == nullptr) return;
  switch (source_) {
    case Source::kNone:
    case Source::kArena:
      break;
    case Source::kHeap:
      std::free(data_);
      break;
    case Source::kMapping:
      ::munmap(data_, static_cast<std::size_t>(size()));
      break;
    case Source::kCuda:
      torchx::FreeDevice(data_);
      break;
  }
  data_ = nullptr;
}

}  // namespace ullage::memory
