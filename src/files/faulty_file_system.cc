#include "files/faulty_file_system.h"

#include <algorithm>
#include <atomic>
#include <cerrno>

namespace ullage::files {

struct FaultyFileSystem::State {
  Faults faults;
  std::atomic<std::int64_t> reads = 0;
  std::int64_t writes = 0;
  std::int64_t written_bytes = 0;
  std::int64_t syncs = 0;
  std::int64_t renames = 0;
  std::int64_t changes = 0;

  // Counts a change; true when the process was killed before it.
  bool KilledBeforeChange() { return changes++ >= faults.killed_after_changes || Killed(); }
  bool Killed() const {
    return written_bytes >= faults.killed_after_bytes || changes > faults.killed_after_changes;
  }
  int SyncError() {
    if (Killed()) return EIO;
    return syncs++ == faults.failed_sync_at ? EIO : 0;
  }
};

namespace {

using State = FaultyFileSystem::State;

class FaultyReadableFile final : public ReadableFile {
 public:
  FaultyReadableFile(std::unique_ptr<ReadableFile> base, State& state)
      : ReadableFile(base->path(), std::min(base->size(), state.faults.truncated_to)),
        base_(std::move(base)),
        state_(state) {}

  Transfer ReadSome(std::int64_t offset, void* out, std::size_t bytes) const override {
    if (state_.reads++ >= state_.faults.failed_read_at) return {0, EIO};
    const Transfer moved = base_->ReadSome(offset, out, bytes);
    for (const Faults::FlippedBit& flip : state_.faults.flipped_bits) {
      const std::int64_t at = flip.offset - offset;
      if (at < 0 || at >= static_cast<std::int64_t>(moved.bytes)) continue;
      static_cast<unsigned char*>(out)[at] ^= static_cast<unsigned char>(1u << flip.bit);
    }
    return moved;
  }

 private:
  std::unique_ptr<ReadableFile> base_;
  State& state_;
};

class FaultyWritableFile final : public WritableFile {
 public:
  FaultyWritableFile(std::unique_ptr<WritableFile> base, State& state)
      : WritableFile(base->path(), base->end()), base_(std::move(base)), state_(state) {}

  Transfer WriteSome(std::int64_t offset, const void* data, std::size_t bytes) override {
    const std::int64_t write = state_.writes++;
    if (state_.faults.before_write) state_.faults.before_write();
    if (state_.KilledBeforeChange()) return {0, EIO};
    if (write >= state_.faults.full_disk_at_write) return {0, ENOSPC};
    if (write == state_.faults.short_write_at) bytes = std::max<std::size_t>(1, bytes / 2);
    const std::int64_t left = state_.faults.killed_after_bytes - state_.written_bytes;
    bytes = static_cast<std::size_t>(std::min(static_cast<std::int64_t>(bytes), left));
    const Transfer moved = base_->WriteSome(offset, data, bytes);
    state_.written_bytes += static_cast<std::int64_t>(moved.bytes);
    return moved;
  }
  int TrySync() override {
    const int error = state_.SyncError();
    return error != 0 ? error : base_->TrySync();
  }
  int TryClose() override { return base_->TryClose(); }

 private:
  std::unique_ptr<WritableFile> base_;
  State& state_;
};

}  // namespace

FaultyFileSystem::FaultyFileSystem(FileSystem& base, Faults faults)
    : base_(base), state_(std::make_unique<State>()) {
  state_->faults = std::move(faults);
}
FaultyFileSystem::~FaultyFileSystem() = default;

std::int64_t FaultyFileSystem::writes() const {
  return state_->writes;
}
std::int64_t FaultyFileSystem::written_bytes() const {
  return state_->written_bytes;
}
std::int64_t FaultyFileSystem::changes() const {
  return state_->changes;
}

std::unique_ptr<ReadableFile> FaultyFileSystem::OpenForRead(const std::string& path) {
  return std::make_unique<FaultyReadableFile>(base_.OpenForRead(path), *state_);
}

std::unique_ptr<WritableFile> FaultyFileSystem::Create(const std::string& path) {
  if (state_->KilledBeforeChange()) ThrowErrno(path, "cannot open for writing", EIO);
  return std::make_unique<FaultyWritableFile>(base_.Create(path), *state_);
}

std::unique_ptr<WritableFile> FaultyFileSystem::OpenForAppend(const std::string& path) {
  if (state_->KilledBeforeChange()) ThrowErrno(path, "cannot open for writing", EIO);
  return std::make_unique<FaultyWritableFile>(base_.OpenForAppend(path), *state_);
}

void FaultyFileSystem::Rename(const std::string& from, const std::string& to) {
  if (state_->KilledBeforeChange() || state_->renames++ == state_->faults.failed_rename_at) {
    ThrowErrno(from, "cannot rename to " + to, EIO);
  }
  base_.Rename(from, to);
}

bool FaultyFileSystem::Exchange(const std::string& a, const std::string& b) {
  if (!state_->faults.can_exchange) return false;
  if (state_->KilledBeforeChange() || state_->renames++ == state_->faults.failed_rename_at) {
    ThrowErrno(a, "cannot exchange with " + b, EIO);
  }
  return base_.Exchange(a, b);
}

void FaultyFileSystem::SyncDirectory(const std::string& path) {
  if (const int error = state_->SyncError()) {
    ThrowErrno(path, "cannot bring the folder to the disk", error);
  }
  base_.SyncDirectory(path);
}

void FaultyFileSystem::CreateDirectory(const std::string& path) {
  if (state_->KilledBeforeChange()) ThrowErrno(path, "cannot make the folder", EIO);
  base_.CreateDirectory(path);
}

void FaultyFileSystem::Remove(const std::string& path) {
  if (state_->KilledBeforeChange()) ThrowErrno(path, "cannot remove", EIO);
  base_.Remove(path);
}

std::vector<std::string> FaultyFileSystem::List(const std::string& path) {
  return base_.List(path);
}

std::optional<FileStatus> FaultyFileSystem::Stat(const std::string& path) {
  return base_.Stat(path);
}

}  // namespace ullage::files
