#include "engine/saver.h"

#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <span>

#include "base/log.h"
#include "kernels/cast.h"
#include "ullage/error.h"

namespace ullage::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPause(2);

// A rank gave up: nobody is to be told.
class GivenUp : public std::exception {};

std::uint32_t Number(CheckpointItem item) {
  return static_cast<std::uint32_t>(item);
}

}  // namespace

Saver::~Saver() {
  if (!thread_.joinable()) return;
  if (std::uncaught_exceptions() > core_.exceptions_at_start) {
    give_up_ = true;
    thread_.join();
    return;
  }
  try {
    Finish();
  } catch (const std::exception& error) {
    LogWarn("checkpoint", fmt::format("{} was not written: {}", path(), error.what()));
  }
}

std::string Saver::Save(const std::string& folder, const SaveOptions& options) {
  Finish();
  Agree(core_.comm(), Number(CheckpointItem::kPrepare), [&] { Begin(folder, options); });
  OpenWindow();
  const std::string saved = path();
  ++generation_;
  thread_ = std::thread([this] { Work(); });
  if (!options.background) Finish();
  return saved;
}

void Saver::Begin(const std::string& folder, const SaveOptions& options) {
  directory_.reset();
  fs_ = options.file_system != nullptr ? options.file_system : &disk_;
  folder_ = std::make_unique<checkpoint::CheckpointFolder>(*fs_, folder);
  steps_ = core_.applied_steps + core_.skipped_steps;
  keep_ = options.keep;
  manifest_ = DescribeCheckpoint(core_, options.client_state);
  tensors_ = SavedTensors(core_);
  units_.assign(core_.plan.units.size(), {});
  copied_ = 0;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].bytes.defined()) continue;
    Unit& unit = units_[static_cast<std::size_t>(tensors_[i].piece.unit)];
    if (unit.numel == 0) unit.begin = i;
    unit.end = i + 1;
    unit.numel += tensors_[i].piece.numel;
    unit.progress = Progress::kPending;
  }
  const std::int64_t wanted =
      options.background ? std::min(options.buffer_bytes / 4 * 4, core_.plan.SavedBytes()) : 0;
  if (wanted > buffer_.size()) {
    buffer_ = {};
    buffer_ = core_.memory.Allocate(memory::Tag::kSaves, {wanted, 0}, plan::Tier::kHost);
  }
  if (!is_first()) return;
  folder_->Prepare();
  directory_ = std::make_unique<files::AtomicDirectory>(*fs_, path());
}

// Files have the same size in every save, but for the first one's buffers, which may come and go.
void Saver::OpenWindow() {
  std::int64_t bytes = 100 << 10;  // more than a header of few tensors
  for (const SavedTensor& tensor : tensors_) {
    const files::TensorDeclaration& declared = tensor.declaration;
    bytes +=
        files::CheckedNumel(declared.shape, declared.type) * files::ElementBytes(declared.type) +
        6 * static_cast<std::int64_t>(declared.name.size()) + 200;
  }
  std::int64_t blocks[] = {checkpoint::BlockCount(bytes)};
  core_.comm().AllReduceMax(blocks, Number(CheckpointItem::kSizes));
  if (blocks[0] <= window_blocks_) return;
  window_.reset();
  window_blocks_ = blocks[0];
  window_ = core_.comm().CreateWindow(
      static_cast<std::int64_t>(sizeof(Region)) + 8 * window_blocks_, /*words=*/3);
}

void Saver::Finish() {
  if (!thread_.joinable()) return;
  thread_.join();
  Await(0, kCompleted);
  Message message;
  window_->Read(0, kCompleted, generation_, offsetof(Region, completed),
                std::as_writable_bytes(std::span(&message, 1)), "the end of a checkpoint");
  directory_.reset();
  tensors_.clear();
  if (message.failed != 0) throw IoError(message.text);
}

void Saver::Work() noexcept {
  std::string problem;
  try {
    const c10::DeviceGuard device(core_.memory.device());
    const checkpoint::File file = WriteShard();
    if (std::ssize(file.checksums) > window_blocks_) {
      throw StateError(
          fmt::format("{} has {} bytes, more than were reckoned with", file.name, file.bytes));
    }
    region().bytes = file.bytes;
    region().blocks = std::ssize(file.checksums);
    std::ranges::copy(file.checksums, checksums());
  } catch (const std::exception& error) {
    problem = error.what();
  }
  {
    // Also after a failure: nobody needs any unit any more.
    const std::lock_guard lock(mutex_);
    for (Unit& unit : units_) unit.progress = Progress::kDone;
  }
  changed_.notify_all();
  Tell(region().written, kWritten, problem);
  if (!is_first()) return;
  try {
    Complete(Collect());
  } catch (const std::exception& error) {
    problem = error.what();
  }
  Tell(region().completed, kCompleted, problem);
}

void Saver::Tell(Message& message, Word word, const std::string& problem) {
  message = {};
  message.failed = problem.empty() ? 0 : 1;
  problem.copy(message.text, sizeof(message.text) - 1);
  window_->Signal(word, generation_);
}

checkpoint::File Saver::WriteShard() {
  std::vector<files::TensorDeclaration> declarations;
  declarations.reserve(tensors_.size());
  for (const SavedTensor& tensor : tensors_) declarations.push_back(tensor.declaration);
  checkpoint::ShardWriter shard(
      *fs_, partial(), checkpoint::ShardName(core_.ranks->rank(), core_.ranks->world_size()),
      declarations);
  const memory::Buffer buffer =
      core_.memory.Allocate(memory::Tag::kData, {8 * kCheckpointPieceNumel, 0}, plan::Tier::kHost);
  for (std::size_t i = 0; i < tensors_.size();) {
    const SavedTensor& tensor = tensors_[i];
    if (tensor.bytes.defined()) {
      shard.Append(tensor.bytes.const_data_ptr(), static_cast<std::int64_t>(tensor.bytes.nbytes()));
      ++i;
      continue;
    }
    Unit& unit = units_[static_cast<std::size_t>(tensor.piece.unit)];
    WriteUnit(unit, shard, buffer);
    i = unit.end;
  }
  return shard.Finish();
}

void Saver::WriteUnit(Unit& unit, checkpoint::ShardWriter& shard, const memory::Buffer& buffer) {
  const float* copy = nullptr;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return unit.progress != Progress::kCopying; });
    if (unit.progress == Progress::kCopied) {
      copy = buffer_.as<float>() + unit.copy;
    } else {
      unit.progress = Progress::kWriting;
    }
  }
  std::byte* const narrowed = buffer.data() + 4 * kCheckpointPieceNumel;
  for (std::size_t i = unit.begin; i < unit.end; ++i) {
    const SavedTensor& tensor = tensors_[i];
    const DType dtype = core_.plan.units[static_cast<std::size_t>(tensor.piece.unit)].unit.dtype;
    const bool narrow = tensor.declaration.type != files::ElementType::kF32;
    for (std::int64_t done = 0; done < tensor.piece.numel; done += kCheckpointPieceNumel) {
      if (give_up_) throw GivenUp();
      NoteProgress();
      const std::int64_t count = std::min(kCheckpointPieceNumel, tensor.piece.numel - done);
      const float* values = buffer.as<float>();
      if (copy != nullptr) {
        values = copy;
        copy += count;
      } else {
        Load(tensor, done, {buffer.as<float>(), static_cast<std::size_t>(count)});
      }
      if (narrow) {
        kernels::Convert(DType::kFloat32, values, dtype, narrowed, count);
        shard.Append(narrowed, count * ElementBytes(dtype));
      } else {
        shard.Append(values, 4 * count);
      }
    }
  }
  {
    const std::lock_guard lock(mutex_);
    unit.progress = Progress::kDone;
  }
  changed_.notify_all();
}

// Elements from `first` of the tensor, as fp32.
void Saver::Load(const SavedTensor& tensor, std::int64_t first, std::span<float> values) const {
  const std::int64_t held = tensor.piece.held_offset + first;
  if (tensor.moment < 0) {
    core_.optimizer->LoadMaster(tensor.piece.unit, held, values);
  } else {
    core_.optimizer->LoadMoment(tensor.piece.unit, tensor.moment, held, values);
  }
}

void Saver::BeforeChange(int index) {
  if (!thread_.joinable()) return;
  const auto start = Clock::now();
  std::unique_lock lock(mutex_);
  Unit& unit = units_[static_cast<std::size_t>(index)];
  if (unit.progress == Progress::kPending && 4 * (copied_ + unit.numel) <= buffer_.size()) {
    unit.progress = Progress::kCopying;
    unit.copy = copied_;
    copied_ += unit.numel;
    lock.unlock();
    Copy(unit);
    lock.lock();
    unit.progress = Progress::kCopied;
    changed_.notify_all();
  }
  changed_.wait(
      lock, [&] { return unit.progress == Progress::kCopied || unit.progress == Progress::kDone; });
  wait_ms_ += std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

void Saver::Copy(Unit& unit) {
  float* to = buffer_.as<float>() + unit.copy;
  for (std::size_t i = unit.begin; i < unit.end; ++i) {
    const std::int64_t numel = tensors_[i].piece.numel;
    Load(tensors_[i], 0, {to, static_cast<std::size_t>(numel)});
    to += numel;
  }
}

void Saver::Await(int rank, Word word) {
  // A rank that writes raises its progress with every MiB; bringing a file to the disk takes the
  // longest.
  const auto patience = 2 * core_.comm().timeout();
  std::uint64_t progress = 0;
  auto since = Clock::now();
  while (window_->Peek(rank, word) < generation_) {
    if (give_up_) throw GivenUp();
    const std::uint64_t now = window_->Peek(rank, kProgress);
    if (now != progress) {
      progress = now;
      since = Clock::now();
    } else if (Clock::now() - since > patience) {
      throw IoError(fmt::format("{}: rank {} has written nothing for {} s", partial(), rank,
                                std::chrono::duration_cast<std::chrono::seconds>(patience).count()),
                    "look at the disk of that rank's host");
    }
    // The others wait for the first rank while it waits.
    if (word == kWritten) NoteProgress();
    std::this_thread::sleep_for(kPause);
  }
}

// What every rank wrote. Waits for all of them, also when one has failed: nobody writes any more
// when this returns.
std::vector<checkpoint::File> Saver::Collect() {
  std::vector<checkpoint::File> files;
  std::string problem;
  for (int rank = 0; rank < core_.ranks->world_size(); ++rank) {
    Await(rank, kWritten);
    Region theirs;
    window_->Read(rank, kWritten, generation_, 0, std::as_writable_bytes(std::span(&theirs, 1)),
                  "what a rank wrote");
    if (theirs.written.failed != 0) {
      if (problem.empty()) {
        problem = core_.ranks->world_size() == 1
                      ? theirs.written.text
                      : fmt::format("rank {}: {}", rank, theirs.written.text);
      }
      continue;
    }
    checkpoint::File file;
    file.name = checkpoint::ShardName(rank, core_.ranks->world_size());
    file.bytes = theirs.bytes;
    file.checksums.resize(static_cast<std::size_t>(theirs.blocks));
    window_->Read(rank, kWritten, generation_, sizeof(Region),
                  std::as_writable_bytes(std::span(file.checksums)), "the checksums of a rank");
    files.push_back(std::move(file));
  }
  if (!problem.empty()) {
    directory_.reset();  // with what was written
    throw IoError(problem);
  }
  return files;
}

void Saver::Complete(std::vector<checkpoint::File> files) {
  for (const checkpoint::File& file : files) {
    const auto status = fs_->Stat(partial() + "/" + file.name);
    if (!status || status->size != file.bytes) {
      throw IoError(fmt::format("{}/{}: was written by another rank, and is not here in its {} "
                                "bytes",
                                partial(), file.name, file.bytes),
                    "save to a folder that all hosts share");
    }
  }
  manifest_.files = std::move(files);
  const std::string text = checkpoint::ToText(manifest_);
  const auto file = fs_->Create(directory_->PathOf(checkpoint::kManifestFile));
  file->Append(text.data(), std::ssize(text));
  file->Sync();
  file->Close();
  directory_->Commit();
  folder_->PointTo(steps_);
  if (keep_ <= 0) return;
  try {
    folder_->Prune(keep_, steps_);
  } catch (const IoError& error) {  // the new one is complete all the same
    LogWarn("checkpoint", fmt::format("an old checkpoint was not removed: {}", error.what()));
  }
}

}  // namespace ullage::engine
