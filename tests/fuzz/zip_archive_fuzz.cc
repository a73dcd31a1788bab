// libFuzzer: any bytes as a zip file.
#include <cstdint>

#include "files/zip_archive.h"
#include "memory_file.h"
#include "ullage/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  testsupport::MemoryFile fs(std::string(reinterpret_cast<const char*>(data), bytes));
  try {
    const auto file = fs.OpenForRead("f");
    const auto archive = ullage::files::ZipArchive::Open(*file);
    for (const auto& entry : archive.entries()) {
      if (archive.Find(entry.name) != &entry) __builtin_trap();
      ullage::files::ZipArchive::Verify(*file, entry);
    }
  } catch (const ullage::IoError&) {
  }
  return 0;
}
