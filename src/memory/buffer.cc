#include "memory/buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "ullage/error.h"

namespace ullage::memory {
namespace {

constexpr std::int64_t kMappedFrom = 128 << 10;

[[noreturn]] void ThrowOutOfMemory(Ledger& ledger, Tag tag, std::int64_t bytes) {
  std::string held;
  const TagBytes now = ledger.now();
  for (std::size_t i = 0; i < now.size(); ++i) {
    if (now[i] > 0) held += fmt::format(" {} {},", plan::kTagNames[i], FormatBytes(now[i]));
  }
  if (!held.empty()) held.pop_back();
  throw OutOfMemoryError(
      fmt::format("out of host memory: {} for {} were refused; the engine holds{}",
                  FormatBytes(bytes), plan::Name(tag), held.empty() ? " nothing" : held),
      "use more ranks with a higher zero_optimization.stage, or a smaller ullage.unit_size");
}

}  // namespace

Claim::Claim(Ledger& ledger, Tag tag, plan::BufferBytes bytes)
    : ledger_(&ledger), tag_(tag), bytes_(bytes) {
  ledger.Add(tag, bytes.used);
  ledger.Add(Tag::kPadding, bytes.padding);
}

Claim::Claim(Claim&& other) noexcept
    : ledger_(std::exchange(other.ledger_, nullptr)),
      tag_(other.tag_),
      bytes_(std::exchange(other.bytes_, {})) {}

Claim& Claim::operator=(Claim&& other) noexcept {
  std::swap(ledger_, other.ledger_);
  std::swap(tag_, other.tag_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Claim::~Claim() {
  if (ledger_ == nullptr) return;
  ledger_->Subtract(tag_, bytes_.used);
  ledger_->Subtract(Tag::kPadding, bytes_.padding);
}

Buffer::Buffer(Ledger& ledger, Place place, Tag tag, plan::BufferBytes bytes) {
  const std::int64_t total = bytes.total();
  if (total > 0 && place == Place::kHost) {
    const auto size = static_cast<std::size_t>(total);
    if (total >= kMappedFrom) {
      void* mapped =
          ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (mapped == MAP_FAILED) ThrowOutOfMemory(ledger, tag, total);
      data_ = static_cast<std::byte*>(mapped);
    } else {
      data_ = static_cast<std::byte*>(std::aligned_alloc(64, (size + 63) / 64 * 64));
      if (data_ == nullptr) ThrowOutOfMemory(ledger, tag, total);
      std::memset(data_, 0, size);
    }
  }
  claim_ = Claim(ledger, tag, bytes);
}

Buffer::Buffer(Buffer&& other) noexcept
    : claim_(std::move(other.claim_)), data_(std::exchange(other.data_, nullptr)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(claim_, other.claim_);
  std::swap(data_, other.data_);
  return *this;
}

Buffer::~Buffer() {
  Free();
}

void Buffer::Free() {
  if (data_ == nullptr) return;
  const std::int64_t total = size();
  if (total >= kMappedFrom) {
    ::munmap(data_, static_cast<std::size_t>(total));
  } else {
    std::free(data_);
  }
  data_ = nullptr;
}

}  // namespace ullage::memory
