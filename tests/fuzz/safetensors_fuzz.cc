// libFuzzer: any bytes as a safetensors file.
#include <cstdint>
#include <vector>

#include "files/safetensors.h"
#include "memory_file.h"
#include "ullage/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  testsupport::MemoryFile fs(std::string(reinterpret_cast<const char*>(data), bytes));
  try {
    const auto file = ullage::files::SafetensorsFile::Open(fs, "f");
    for (const auto& tensor : file.tensors()) {
      std::vector<char> out(static_cast<std::size_t>(tensor.bytes));
      file.Read(tensor, 0, tensor.numel, out.data());
    }
  } catch (const ullage::IoError&) {
  }
  return 0;
}
