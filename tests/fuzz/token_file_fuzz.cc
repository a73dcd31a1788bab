// libFuzzer: any bytes as a token file.
#include <cstdint>
#include <vector>

#include "files/token_file.h"
#include "memory_file.h"
#include "ullage/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  testsupport::MemoryFile fs(std::string(reinterpret_cast<const char*>(data), bytes));
  try {
    const auto file = ullage::files::TokenFile::Open(fs, "f");
    for (std::int64_t record = 0; record < file.records(); ++record) {
      std::vector<std::int32_t> ids(static_cast<std::size_t>(file.Length(record)));
      file.ReadTokens(file.Begin(record), file.Length(record), ids.data());
    }
  } catch (const ullage::IoError&) {
  } catch (const ullage::UnsupportedError&) {
  }
  return 0;
}
