// Files as torch.save writes them, made by hand, also with what torch would not write.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "files/byte_reader.h"

namespace testsupport {

inline std::string LittleEndian(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}

// Opcodes one after the other, from the protocol on.
class PickleText {
 public:
  explicit PickleText(int protocol = 2) : text_{'\x80', static_cast<char>(protocol)} {}

  PickleText& Op(char op) { return Raw(std::string(1, op)); }
  PickleText& Raw(const std::string& bytes) {
    text_ += bytes;
    return *this;
  }
  PickleText& Text(const std::string& text) {
    return Raw("X" + LittleEndian(text.size(), 4) + text);
  }
  PickleText& Number(std::int64_t value) {
    return Raw("\x8a\x08" + LittleEndian(static_cast<std::uint64_t>(value), 8));
  }
  PickleText& Tuple(const std::vector<std::int64_t>& values) {
    Op('(');
    for (const std::int64_t value : values) Number(value);
    return Op('t');
  }
  PickleText& Class(const std::string& module, const std::string& name) {
    return Raw("c" + module + "\n" + name + "\n");
  }
  PickleText& Storage(const std::string& key, std::int64_t numel,
                      const std::string& type = "FloatStorage") {
    return Op('(')
        .Text("storage")
        .Class("torch", type)
        .Text(key)
        .Text("cpu")
        .Number(numel)
        .Raw("tQ");
  }
  PickleText& Tensor(const std::string& key, std::size_t storage_numel, std::size_t offset,
                     const std::vector<std::int64_t>& shape,
                     const std::vector<std::int64_t>& strides,
                     const std::string& type = "FloatStorage") {
    return Class("torch._utils", "_rebuild_tensor_v2")
        .Op('(')
        .Storage(key, static_cast<std::int64_t>(storage_numel), type)
        .Number(static_cast<std::int64_t>(offset))
        .Tuple(shape)
        .Tuple(strides)
        .Raw("\x89}tR");
  }
  std::string End() const { return text_ + "."; }

 private:
  std::string text_;
};

// A zip file of stored entries.
inline std::string StoredZip(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string file, directory;
  for (const auto& [name, data] : entries) {
    const std::uint32_t crc = ullage::files::Crc32(0, data.data(), data.size());
    const std::string common = LittleEndian(0, 2) + LittleEndian(0, 2) + LittleEndian(0, 4) +
                               LittleEndian(crc, 4) + LittleEndian(data.size(), 4) +
                               LittleEndian(data.size(), 4) + LittleEndian(name.size(), 2) +
                               LittleEndian(0, 2);
    directory += "PK\1\2" + LittleEndian(0, 2) + LittleEndian(0, 2) + common + LittleEndian(0, 2) +
                 LittleEndian(0, 2) + LittleEndian(0, 6) + LittleEndian(file.size(), 4) + name;
    file += "PK\3\4" + LittleEndian(0, 2) + common + name + data;
  }
  const std::size_t at = file.size();
  return file + directory + "PK\5\6" + LittleEndian(0, 4) + LittleEndian(entries.size(), 2) +
         LittleEndian(entries.size(), 2) + LittleEndian(directory.size(), 4) + LittleEndian(at, 4) +
         LittleEndian(0, 2);
}

// The archive of torch.save with `pickle` and the bytes of its storages by key.
inline std::string TorchZip(const std::string& pickle,
                            const std::vector<std::pair<std::string, std::string>>& storages) {
  std::vector<std::pair<std::string, std::string>> entries = {{"t/data.pkl", pickle},
                                                              {"t/byteorder", "little"}};
  for (const auto& [key, data] : storages) entries.emplace_back("t/data/" + key, data);
  entries.emplace_back("t/version", "3\n");
  return StoredZip(entries);
}

}  // namespace testsupport
