#include "files/safetensors.h"

#include <array>
#include <bit>

#include <fmt/format.h>

#include "files/safetensors_header.h"
#include "ullage/error.h"

namespace ullage::files {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are read as they lie in files");

constexpr std::int64_t kLengthBytes = 8;

// A word about files that are often found under this name.
std::string HintFor(const std::array<unsigned char, kLengthBytes>& start) {
  const std::string_view text(reinterpret_cast<const char*>(start.data()), start.size());
  if (text == "version ") return "this is a Git LFS pointer: run git lfs pull to get the file";
  if (text.starts_with("PK")) return "this is a zip or PyTorch file: save it as safetensors";
  return "the file is damaged or no safetensors file: fetch or write it again";
}

}  // namespace

SafetensorsFile SafetensorsFile::Open(FileSystem& fs, const std::string& path) {
  SafetensorsFile result;
  result.file_ = fs.OpenForRead(path);
  const std::int64_t size = result.file_->size();
  std::array<unsigned char, kLengthBytes> start{};
  if (size < kLengthBytes) {
    throw IoError(fmt::format("{}: has {} bytes, a safetensors file has at least {}", path, size,
                              kLengthBytes + 2),
                  HintFor(start));
  }
  result.file_->ReadAt(0, start.data(), kLengthBytes);
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < start.size(); ++i) {
    length |= static_cast<std::uint64_t>(start[i]) << (8 * i);
  }
  const auto left = static_cast<std::uint64_t>(size - kLengthBytes);
  if (length > left || length > static_cast<std::uint64_t>(kMaxHeaderBytes)) {
    throw IoError(fmt::format("{}: bytes 0 to 7 give the header {} bytes, but {} follow and at "
                              "most {} are allowed",
                              path, length, left, kMaxHeaderBytes),
                  HintFor(start));
  }
  std::string text(length, '\0');
  result.file_->ReadAt(kLengthBytes, text.data(), static_cast<std::int64_t>(length));
  SafetensorsHeader header = ParseHeader(path, text, static_cast<std::int64_t>(left - length));
  result.tensors_ = std::move(header.tensors);
  result.metadata_ = std::move(header.metadata);
  for (std::size_t i = 0; i < result.tensors_.size(); ++i) {
    result.by_name_.emplace(result.tensors_[i].name, i);
  }
  return result;
}

const TensorInfo* SafetensorsFile::Find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

const TensorInfo& SafetensorsFile::Get(const std::string& name) const {
  if (const TensorInfo* tensor = Find(name)) return *tensor;
  throw IoError(fmt::format("{}: has no tensor \"{}\" among its {}", path(), name, tensors_.size()),
                "check that the file belongs to this model or tool");
}

void SafetensorsFile::Read(const TensorInfo& tensor, std::int64_t first, std::int64_t count,
                           void* out) const {
  if (first < 0 || count < 0 || first > tensor.numel || count > tensor.numel - first) {
    throw IoError(fmt::format("{}: {} elements from {} of tensor \"{}\" were asked for, it has {}",
                              path(), count, first, tensor.name, tensor.numel));
  }
  const std::int64_t element = ElementBytes(tensor.type);
  file_->ReadAt(tensor.offset + first * element, out, count * element);
}

void SafetensorsFile::Read(const std::string& name, std::int64_t first, std::int64_t count,
                           void* out) const {
  Read(Get(name), first, count, out);
}

}  // namespace ullage::files
