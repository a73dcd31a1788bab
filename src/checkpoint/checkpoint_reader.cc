#include "checkpoint/checkpoint_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <tuple>
#include <utility>

#include "base/parallel.h"
#include "checkpoint/block_checksums.h"
#include "ullage/error.h"

namespace ullage::checkpoint {
namespace {

constexpr const char* kOtherCheckpoint =
    "resume from an earlier checkpoint: --resume-from OUTPUT/checkpoints/step-...";

}  // namespace

struct CheckpointReader::Shard {
  std::int64_t index;
  const File& entry;
  std::unique_ptr<files::ReadableFile> file;
  std::unordered_map<std::string, files::TensorInfo> tensors;
};

struct CheckpointReader::Run {
  std::int64_t file;
  std::int64_t begin;  // bytes of the file
  std::int64_t end;
  std::size_t range;
  std::int64_t first;  // element of the tensor that `begin` belongs to
  std::int64_t element_bytes;
};

void CheckFiles(files::FileSystem& fs, const std::string& directory, const Manifest& manifest) {
  for (const File& file : manifest.files) {
    const std::string path = directory + "/" + file.name;
    const auto status = fs.Stat(path);
    if (!status || !status->is_regular) {
      throw IoError(
          fmt::format("{}: is missing; the checkpoint has {} files", path, manifest.files.size()),
          fmt::format("copy the whole folder, or {}", kOtherCheckpoint));
    }
    if (status->size != file.bytes) {
      throw IoError(
          fmt::format("{}: has {} bytes, {} says {}", path, status->size, kManifestFile,
                      file.bytes),
          fmt::format("the file was cut off or changed: copy it again, or {}", kOtherCheckpoint));
    }
  }
}

CheckpointReader::CheckpointReader(files::FileSystem& fs, std::string directory)
    : Source(directory, ReadManifest(fs, directory)), fs_(fs) {
  CheckFiles(fs_, this->directory(), manifest());
  shards_.resize(manifest().files.size());
}

CheckpointReader::~CheckpointReader() = default;

const CheckpointReader::Shard& CheckpointReader::ShardOf(std::int64_t file) const {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Shard>& shard = shards_[static_cast<std::size_t>(file)];
  if (shard) return *shard;
  const File& entry = manifest().files[static_cast<std::size_t>(file)];
  const std::string path = directory() + "/" + entry.name;
  auto opened = std::make_unique<Shard>(Shard{file, entry, fs_.OpenForRead(path), {}});
  std::int64_t data_begin = entry.bytes;
  const auto header = files::SafetensorsFile::Open(fs_, path);
  for (const files::TensorInfo& tensor : header.tensors()) {
    if (tensor.offset % files::ElementBytes(tensor.type) != 0) {
      throw IoError(fmt::format("{}: tensor \"{}\" starts at byte {}, no multiple of its elements' "
                                "size",
                                path, tensor.name, tensor.offset),
                    "the file is no part of a checkpoint");
    }
    data_begin = std::min(data_begin, tensor.offset);
    opened->tensors.emplace(tensor.name, tensor);
  }
  // The header was believed so far; its bytes must be those that were written.
  std::vector<std::byte> block;
  for (std::int64_t i = 0; i < BlockCount(data_begin); ++i) ReadBlock(*opened, i, block);
  shard = std::move(opened);
  return *shard;
}

std::span<const std::byte> CheckpointReader::ReadBlock(const Shard& shard, std::int64_t block,
                                                       std::vector<std::byte>& out) const {
  const std::int64_t begin = block * kBlockBytes;
  const std::int64_t bytes = std::min(kBlockBytes, shard.entry.bytes - begin);
  out.resize(static_cast<std::size_t>(kBlockBytes));
  shard.file->ReadAt(begin, out.data(), bytes);
  const std::uint64_t told = shard.entry.checksums[static_cast<std::size_t>(block)];
  const std::uint64_t found = Checksum(out.data(), bytes);
  if (found != told) {
    throw IoError(
        fmt::format("{}: bytes {} to {} are damaged: their checksum is {:016x}, {} says "
                    "{:016x}",
                    shard.file->path(), begin, begin + bytes - 1, found, kManifestFile, told),
        fmt::format("copy the file again, or {}", kOtherCheckpoint));
  }
  return {out.data(), static_cast<std::size_t>(bytes)};
}

void CheckpointReader::AddRuns(std::size_t index, const Range& range,
                               std::vector<Run>& runs) const {
  const Tensor& tensor = *range.tensor;
  CheckRange(range);
  const files::ElementType type = Manifest::TypeOf(tensor, range.part);
  const std::int64_t element_bytes = files::ElementBytes(type);
  for (const Slice& slice : tensor.slices) {
    const std::int64_t first = std::max(range.first, slice.first);
    const std::int64_t last = std::min(range.first + range.numel, slice.first + slice.numel);
    if (first >= last) continue;
    const Shard& shard = ShardOf(slice.file);
    const auto found = shard.tensors.find(NameInFile(range.part, tensor.name));
    if (found == shard.tensors.end() || found->second.type != type ||
        found->second.numel != slice.numel) {
      throw IoError(fmt::format("{}: has no tensor \"{}\" of {} elements of type {}, as {} says",
                                shard.file->path(), NameInFile(range.part, tensor.name),
                                slice.numel, files::Name(type), kManifestFile),
                    kOtherCheckpoint);
    }
    const std::int64_t begin = found->second.offset + (first - slice.first) * element_bytes;
    runs.push_back(
        {slice.file, begin, begin + (last - first) * element_bytes, index, first, element_bytes});
  }
}

void CheckpointReader::Read(std::span<const Range> ranges, const Take& take) const {
  std::vector<Run> runs;
  for (std::size_t i = 0; i < ranges.size(); ++i) AddRuns(i, ranges[i], runs);
  struct Use {
    std::int64_t file;
    std::int64_t block;
    std::size_t run;
  };
  std::vector<Use> uses;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    for (std::int64_t block = runs[r].begin / kBlockBytes; block * kBlockBytes < runs[r].end;
         ++block) {
      uses.push_back({runs[r].file, block, r});
    }
  }
  std::ranges::sort(uses, {},
                    [](const Use& use) { return std::tuple(use.file, use.block, use.run); });
  std::vector<std::size_t> starts;  // of the uses of one block
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (i == 0 || uses[i].file != uses[i - 1].file || uses[i].block != uses[i - 1].block) {
      starts.push_back(i);
    }
  }
  ParallelFor(0, std::ssize(starts), 1, [&](std::int64_t from, std::int64_t to) {
    std::vector<std::byte> buffer;
    for (std::int64_t s = from; s < to; ++s) {
      const auto at = static_cast<std::size_t>(s);
      const std::size_t end = at + 1 < starts.size() ? starts[at + 1] : uses.size();
      const Use& block = uses[starts[at]];
      const std::span<const std::byte> bytes = ReadBlock(ShardOf(block.file), block.block, buffer);
      const std::int64_t block_begin = block.block * kBlockBytes;
      for (std::size_t u = starts[at]; u < end; ++u) {
        const Run& run = runs[uses[u].run];
        const std::int64_t begin = std::max(run.begin, block_begin);
        const std::int64_t last = std::min(run.end, block_begin + std::ssize(bytes));
        take(run.range, run.first + (begin - run.begin) / run.element_bytes,
             bytes.data() + (begin - block_begin), (last - begin) / run.element_bytes);
      }
    }
  });
}

void CheckpointReader::ReadInto(const Range& range, std::byte* out) const {
  std::vector<Run> runs;
  AddRuns(0, range, runs);
  for (const Run& run : runs) {
    for (std::int64_t begin = run.begin; begin < run.end;) {
      const std::int64_t block = begin / kBlockBytes;
      if (last_file_ != run.file || last_block_ != block) {
        last_file_ = -1;
        ReadBlock(ShardOf(run.file), block, last_);
        last_file_ = run.file;
        last_block_ = block;
      }
      const std::int64_t end = std::min(run.end, (block + 1) * kBlockBytes);
      std::memcpy(out, last_.data() + (begin - block * kBlockBytes),
                  static_cast<std::size_t>(end - begin));
      out += end - begin;
      begin = end;
    }
  }
}

void CheckpointReader::VerifyAll(const std::function<void(std::int64_t bytes)>& done) const {
  std::atomic<std::int64_t> verified = 0;
  for (std::int64_t file = 0; file < std::ssize(shards_); ++file) {
    const Shard& shard = ShardOf(file);
    ParallelFor(0, BlockCount(shard.entry.bytes), 16, [&](std::int64_t from, std::int64_t to) {
      std::vector<std::byte> buffer;
      for (std::int64_t block = from; block < to; ++block) {
        verified += std::ssize(ReadBlock(shard, block, buffer));
        if (done) done(verified);
      }
    });
  }
  // What the manifest says lies in the files.
  std::vector<Run> runs;
  for (const Tensor& tensor : manifest().tensors) {
    for (const std::string& part : manifest().PartsOf(tensor)) {
      runs.clear();
      AddRuns(0, {&tensor, part, 0, tensor.numel}, runs);
    }
  }
}

std::vector<std::byte> CheckpointReader::ReadWhole(std::int64_t file,
                                                   const std::string& name) const {
  const Shard& shard = ShardOf(file);
  const auto found = shard.tensors.find(name);
  std::vector<std::byte> bytes;
  if (found == shard.tensors.end()) return bytes;
  const std::int64_t begin = found->second.offset, end = begin + found->second.bytes;
  bytes.reserve(static_cast<std::size_t>(found->second.bytes));
  std::vector<std::byte> buffer;
  for (std::int64_t block = begin / kBlockBytes; block * kBlockBytes < end; ++block) {
    const std::span<const std::byte> read = ReadBlock(shard, block, buffer);
    const std::int64_t block_begin = block * kBlockBytes;
    const std::int64_t from = std::max(begin, block_begin) - block_begin;
    const std::int64_t to = std::min(end, block_begin + std::ssize(read)) - block_begin;
    bytes.insert(bytes.end(), read.begin() + from, read.begin() + to);
  }
  return bytes;
}

}  // namespace ullage::checkpoint
