#include "optim/disk_state.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/bytes.h"
#include "ullage/error.h"

namespace ullage::optim {
namespace {

static_assert(plan::kDiskGrain % tiers::kDiskBlock == 0);

constexpr std::int64_t kVisitNumel = 256 << 10;  // elements of a piece

void CheckFolder(const DiskPlace& place) {
  const std::string hint =
      "name an existing folder on a fast local disk that this user may write to";
  if (place.folder.empty()) {
    throw ConfigError(fmt::format("{}: state is to lie on disk, but no folder is named", place.key),
                      hint);
  }
  std::error_code error;
  if (!std::filesystem::is_directory(place.folder, error)) {
    throw ConfigError(fmt::format("{}: \"{}\" is not an existing folder", place.key, place.folder),
                      hint);
  }
  if (::access(place.folder.c_str(), W_OK | X_OK) != 0) {
    throw ConfigError(fmt::format("{}: \"{}\" cannot be written to: {}", place.key, place.folder,
                                  std::strerror(errno)),
                      hint);
  }
}

// An error's text without the remedy, which is another's here.
std::string FirstLine(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

}  // namespace

DiskState::DiskState(const plan::Plan& plan, int rank, const DiskPlace& place,
                     memory::Memory& memory, const tiers::DiskOptions& options)
    : plan_(plan),
      memory_(memory),
      layout_(plan::MakeDiskLayout(plan)),
      slot_memory_(
          memory.Allocate(memory::Tag::kBuckets, {plan.disk_slot_bytes, 0}, memory::Tier::kHost)) {
  if (layout_.parts.empty()) return;
  constexpr auto kDisk = memory::Tier::kDisk;
  for (const plan::UnitPlan& unit : plan.units) {
    if (!unit.state_on_disk) continue;
    claims_.push_back(
        memory.Note(memory::Tag::kMaster, plan::MasterBytes(unit, rank, plan.world_size), kDisk));
    claims_.push_back(memory.Note(memory::Tag::kMoments,
                                  plan::MomentBytes(unit, rank, plan.world_size, plan.moments),
                                  kDisk));
  }
  claims_.push_back(memory.Note(memory::Tag::kBuckets, {0, layout_.padding}, kDisk));
  if (!memory.is_dry()) MakeFile(rank, place, options);
}

DiskState::~DiskState() = default;

void DiskState::MakeFile(int rank, const DiskPlace& place, const tiers::DiskOptions& options) {
  CheckFolder(place);
  if (place.limit && layout_.bytes > *place.limit) {
    throw ConfigError(
        fmt::format("ullage.disk.limit: {} for state on disk, but rank {} needs {}",
                    FormatBytes(*place.limit), rank, FormatBytes(layout_.bytes)),
        "raise the limit, lower zero_optimization.offload_optimizer.ratio, or use more ranks");
  }
  file_ = std::make_unique<tiers::DiskFile>(place.folder, rank, layout_.bytes, options);
  void* memory = slot_memory_.data();
  auto room = static_cast<std::size_t>(slot_memory_.size());
  std::align(plan::kDiskGrain, room - plan::kDiskGrain, memory, room);
  for (std::size_t slot = 0; slot < plan::kDiskSlots; ++slot) {
    slots_.emplace_back();
    slots_.back().data =
        static_cast<std::byte*>(memory) + static_cast<std::int64_t>(slot) * layout_.largest_bytes;
  }
}

std::int64_t DiskState::ElementBytesOf(int unit, DiskArray array) const {
  const DType dtype = plan_.units[static_cast<std::size_t>(unit)].unit.dtype;
  return array == DiskArray::kExtension ? MasterExtensionBytes(dtype) : 4;
}

std::int64_t DiskState::ArrayOffset(DiskArray array, std::int64_t numel) const {
  const std::int64_t before =
      array == DiskArray::kExtension ? plan_.moments : static_cast<std::int64_t>(array);
  return 4 * before * numel;
}

DiskState::Part DiskState::PartIn(const plan::DiskPart& part, std::byte* data) const {
  const bool has_extension = ElementBytesOf(part.unit, DiskArray::kExtension) > 0;
  std::byte* const extension = data + ArrayOffset(DiskArray::kExtension, part.end - part.begin);
  return {part.unit, part.begin, part.end,
          plan_.moments > 0 ? reinterpret_cast<float*>(data) : nullptr,
          has_extension ? extension : nullptr};
}

void DiskState::Stream(const std::function<void(const Part&)>& update,
                       const std::function<void(int unit)>& done) {
  if (file_ == nullptr) return;
  std::unique_lock lock(mutex_);
  ThrowIfLost();
  try {
    if (!is_read_ahead_) ReadFirstParts();
    is_streaming_ = true;
    is_read_ahead_ = false;
    for (std::size_t p = 0; p < layout_.parts.size(); ++p) {
      const plan::DiskPart& part = layout_.parts[p];
      Slot& slot = SlotOf(p);
      Finish(slot.reading);
      lock.unlock();
      update(PartIn(part, slot.data));
      lock.lock();
      ThrowIfLost();
      slot.writing = file_->Write(part.offset, slot.data, part.bytes);
      if (p > 0) {
        // It had the time of this update to be written.
        Finish(SlotOf(p - 1).writing);
        if (p - 1 + plan::kDiskSlots < layout_.parts.size()) {
          StartReading(p - 1 + plan::kDiskSlots);
        }
      }
      if (part.end < plan_.HeldNumel(part.unit)) continue;
      lock.unlock();
      done(part.unit);
      lock.lock();
    }
    ThrowIfLost();
    for (Slot& slot : slots_) Finish(slot.writing);
    is_streaming_ = false;
    ReadFirstParts();
  } catch (const std::exception& error) {
    if (!lock.owns_lock()) lock.lock();
    Lose(error);
  }
}

void DiskState::Visit(
    int unit, DiskArray array, std::int64_t first, std::int64_t numel, DiskAccess access,
    const std::function<void(std::int64_t first, std::int64_t numel, std::byte* bytes)>& body) {
  const std::int64_t element_bytes = ElementBytesOf(unit, array);
  if (file_ == nullptr || numel == 0 || element_bytes == 0) return;
  const std::int64_t end = first + numel;
  const memory::Buffer piece = memory_.Allocate(
      memory::Tag::kData, {element_bytes * std::min(numel, kVisitNumel), 0}, memory::Tier::kHost);
  std::lock_guard lock(mutex_);
  ThrowIfLost();
  bool is_writing = false;
  try {
    for (Slot& slot : slots_) {
      is_writing = slot.writing.has_value();
      Finish(slot.writing);
    }
    is_writing = false;
    if (access != DiskAccess::kRead && !is_streaming_) DropReadAhead();
    for (std::int64_t at = first; at < end;) {
      const plan::DiskPart& part =
          layout_.parts[layout_.first[static_cast<std::size_t>(unit)] +
                        static_cast<std::size_t>(at / plan_.disk_part_numel)];
      const std::int64_t count = std::min({part.end - at, end - at, kVisitNumel});
      const std::int64_t offset = part.offset + ArrayOffset(array, part.end - part.begin) +
                                  (at - part.begin) * element_bytes;
      if (access != DiskAccess::kReplace) {
        file_->Wait(file_->Read(offset, piece.data(), count * element_bytes));
      }
      body(at, count, piece.data());
      if (access != DiskAccess::kRead) {
        is_writing = true;
        file_->Wait(file_->Write(offset, piece.data(), count * element_bytes));
        is_writing = false;
      }
      at += count;
    }
  } catch (const std::exception& error) {
    // What was not being written is as it was.
    if (!is_writing && access == DiskAccess::kRead) throw;
    Lose(error);
  }
}

void DiskState::LoadMoment(int unit, int moment, std::int64_t first, std::span<float> values) {
  Visit(unit, static_cast<DiskArray>(moment), first, static_cast<std::int64_t>(values.size()),
        DiskAccess::kRead, [&](std::int64_t at, std::int64_t count, const std::byte* bytes) {
          std::memcpy(values.data() + (at - first), bytes, static_cast<std::size_t>(count) * 4);
        });
}

void DiskState::StoreMoment(int unit, int moment, std::int64_t first,
                            std::span<const float> values) {
  Visit(unit, static_cast<DiskArray>(moment), first, static_cast<std::int64_t>(values.size()),
        DiskAccess::kReplace, [&](std::int64_t at, std::int64_t count, std::byte* bytes) {
          std::memcpy(bytes, values.data() + (at - first), static_cast<std::size_t>(count) * 4);
        });
}

void DiskState::StartReading(std::size_t p) {
  const plan::DiskPart& part = layout_.parts[p];
  SlotOf(p).reading = file_->Read(part.offset, SlotOf(p).data, part.bytes);
}

void DiskState::ReadFirstParts() {
  for (std::size_t p = 0; p < std::min(plan::kDiskSlots, layout_.parts.size()); ++p) {
    StartReading(p);
  }
  is_read_ahead_ = true;
}

void DiskState::Finish(std::optional<tiers::DiskTicket>& ticket) {
  if (ticket) file_->Wait(*std::exchange(ticket, std::nullopt));
}

void DiskState::DropReadAhead() {
  is_read_ahead_ = false;
  for (Slot& slot : slots_) {
    try {
      Finish(slot.reading);
    } catch (const IoError&) {
      // Nobody needs it; who reads the same again is told.
    }
  }
}

void DiskState::CheckIntact() const {
  std::lock_guard lock(mutex_);
  ThrowIfLost();
}

void DiskState::ThrowIfLost() const {
  if (lost_.empty()) return;
  throw StateError(
      fmt::format("the optimizer state on disk is neither that before the step nor that after: {}",
                  lost_),
      "mend the disk or offload to another, and resume from the last checkpoint");
}

void DiskState::Lose(const std::exception& error) {
  if (lost_.empty()) lost_ = FirstLine(error.what());
  for (Slot& slot : slots_) {
    for (auto* ticket : {&slot.reading, &slot.writing}) {
      try {
        Finish(*ticket);
      } catch (const IoError&) {
        // The first error is the one to tell.
      }
    }
  }
  is_streaming_ = false;
  is_read_ahead_ = false;
  if (dynamic_cast<const IoError*>(&error) == nullptr) throw;
  throw IoError(
      fmt::format("{}; the optimizer state on disk is neither that before the step nor that after",
                  lost_),
      "mend the disk or offload to another, and resume from the last checkpoint");
}

}  // namespace ullage::optim
