// Reading a safetensors file by range: eight bytes of header length, a JSON header, then the
// tensors' bytes. The header is read and checked in full when the file is opened; of the data no
// more than what is asked for.
//
// Files come from anywhere, so nothing in the header is believed: its length is bounded by the
// file and by kMaxHeaderBytes, types and shapes are known and their products do not overflow, the
// tensors lie inside the file without overlap or holes, and no name comes twice.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/dtype.h"
#include "files/file_system.h"

namespace ullage::files {

// Every type of the format whose elements are whole bytes.
enum class ElementType : std::uint8_t {
  kF64,
  kF32,
  kF16,
  kBF16,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kC64,
};

std::int64_t ElementBytes(ElementType type);
std::string_view Name(ElementType type);  // as in the file: "F32", "BF16", ...
ElementType ToElementType(DType dtype);

// Product of the dimensions; throws ConfigError when one is negative or the number of elements,
// or of bytes, does not fit into 63 bits.
std::int64_t CheckedNumel(const std::vector<std::int64_t>& shape, ElementType type);

std::string FormatShape(const std::vector<std::int64_t>& shape);  // "[2, 3]"

struct TensorInfo {
  std::string name;
  ElementType type = ElementType::kF32;
  std::vector<std::int64_t> shape;
  std::int64_t numel = 0;
  std::int64_t offset = 0;  // of the first byte, from the start of the file
  std::int64_t bytes = 0;
};

class SafetensorsFile {
 public:
  static constexpr std::int64_t kMaxHeaderBytes = 100'000'000;  // as in the reference reader

  // Throws IoError with the path and the key or byte. `fs` is not used after the call.
  static SafetensorsFile Open(FileSystem& fs, const std::string& path);

  const std::string& path() const { return file_->path(); }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in the order of the bytes
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  const TensorInfo* Find(const std::string& name) const;  // null: not in this file
  const TensorInfo& Get(const std::string& name) const;   // throws IoError when it is not there

  // Elements first .. first + count - 1 of the flattened tensor, in the file's own type and
  // little-endian, count * ElementBytes(type) bytes. Any thread. Throws IoError when the range is
  // not inside the tensor.
  void Read(const TensorInfo& tensor, std::int64_t first, std::int64_t count, void* out) const;
  void Read(const std::string& name, std::int64_t first, std::int64_t count, void* out) const;

 private:
  SafetensorsFile() = default;

  std::unique_ptr<ReadableFile> file_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string, std::size_t> by_name_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace ullage::files
