// Optimizer state that lies on disk: what 16-bit weights lack of their fp32 values, and the
// moments. It is in memory only while it is updated, part by part, or asked for.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "memory/buffer.h"
#include "plan/disk_layout.h"
#include "tiers/disk_file.h"

namespace ullage::optim {

// Where the file of each rank is made.
struct DiskPlace {
  std::string folder;
  std::string key;                    // of the settings file, for messages
  std::optional<std::int64_t> limit;  // bytes of this rank; ullage.disk.limit
};

// Which of a unit's arrays; kFirstMoment is SGD's momentum, too.
enum class DiskArray : std::uint8_t { kFirstMoment, kSecondMoment, kExtension };

enum class DiskAccess : std::uint8_t { kRead, kReplace, kChange };

// The file is made at the start with its full size, all zeros, and goes when this ends, or when the
// next run in that folder finds it left behind (tiers/scratch_file.h).
//
// What goes wrong while state is written leaves it neither old nor new. From then on everything
// here throws StateError, which says that the run has to be resumed from a checkpoint.
class DiskState {
 public:
  // A part of a unit in memory.
  struct Part {
    int unit;
    std::int64_t begin;  // elements of what this rank holds of the unit
    std::int64_t end;
    float* moments;        // one array of end - begin elements after the other
    std::byte* extension;  // null where weights lack nothing
  };

  // `plan` and `memory` must outlive this. Makes no file when the plan has nothing on disk or the
  // run is dry. Throws ConfigError when the folder cannot be used or the limit is too low, IoError
  // when the disk lacks the space.
  DiskState(const plan::Plan& plan, int rank, const DiskPlace& place, memory::Memory& memory,
            const tiers::DiskOptions& options = {});
  // Waits for what is under way.
  ~DiskState();

  // Calls `update` with each part of each unit in turn, whose state it may change, then, after the
  // last part of a unit, `done`. The next parts are read and the last one is written meanwhile.
  // Everything is written when this returns, and the first parts of the next call are being read.
  // One caller at a time; nothing that it calls may wait for a Visit.
  void Stream(const std::function<void(const Part&)>& update,
              const std::function<void(int unit)>& done);

  // Calls `body` with pieces of elements [first, first + numel) of an array of `unit`: which
  // elements, and their bytes in memory. They are written back unless `access` is kRead; with
  // kReplace they are not read before. Any thread; during a Stream only for units that it is done
  // with.
  void Visit(
      int unit, DiskArray array, std::int64_t first, std::int64_t numel, DiskAccess access,
      const std::function<void(std::int64_t first, std::int64_t numel, std::byte* bytes)>& body);

  // Values of moment `moment` (from 0) of elements from `first` on, by Visit.
  void LoadMoment(int unit, int moment, std::int64_t first, std::span<float> values);
  void StoreMoment(int unit, int moment, std::int64_t first, std::span<const float> values);

  // Throws StateError when the state was lost.
  void CheckIntact() const;

  // Empty when there is none.
  std::string path() const { return file_ == nullptr ? "" : file_->scratch().path(); }

 private:
  struct Slot {
    std::byte* data = nullptr;
    std::optional<tiers::DiskTicket> reading;
    std::optional<tiers::DiskTicket> writing;
  };

  void MakeFile(int rank, const DiskPlace& place, const tiers::DiskOptions& options);
  Part PartIn(const plan::DiskPart& part, std::byte* data) const;
  std::int64_t ElementBytesOf(int unit, DiskArray array) const;
  // Where the array begins in a part of `unit` with `numel` elements.
  std::int64_t ArrayOffset(DiskArray array, std::int64_t numel) const;
  void StartReading(std::size_t part);
  void ReadFirstParts();
  void Finish(std::optional<tiers::DiskTicket>& ticket);
  void DropReadAhead();
  void ThrowIfLost() const;
  // Within the handler of an exception: the state is lost because of it.
  [[noreturn]] void Lose(const std::exception& error);
  Slot& SlotOf(std::size_t part) { return slots_[part % plan::kDiskSlots]; }

  const plan::Plan& plan_;
  memory::Memory& memory_;
  const plan::DiskLayout layout_;
  std::vector<memory::Claim> claims_;  // of the bytes of the file
  memory::Buffer slot_memory_;

  mutable std::mutex mutex_;  // guards what follows
  std::vector<Slot> slots_;
  bool is_streaming_ = false;
  bool is_read_ahead_ = false;  // the first parts are in the slots or on their way there
  std::string lost_;            // why the state was lost

  std::unique_ptr<tiers::DiskFile> file_;  // last: it waits for requests into slot_memory_
};

}  // namespace ullage::optim
