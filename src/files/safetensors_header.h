// The JSON header of a safetensors file: text to checked tensors and back. Internal to the room.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "files/safetensors.h"

namespace ullage::files {

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // in the order of their bytes
  std::map<std::string, std::string> metadata;
};

// `text` is the header without its length, `data_bytes` what follows it in the file. Offsets in
// the result count from the start of the file. Throws IoError that begins with `path`.
SafetensorsHeader ParseHeader(const std::string& path, std::string_view text,
                              std::int64_t data_bytes);

// The length and the JSON, padded with spaces so that the data starts at a multiple of 8. Uses
// name, type, shape and bytes of the tensors, which follow each other in the given order.
std::string FormatHeader(const std::vector<TensorInfo>& tensors,
                         const std::map<std::string, std::string>& metadata);

}  // namespace ullage::files
