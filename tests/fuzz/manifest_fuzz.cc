// libFuzzer: any text as a checkpoint's manifest, once as it is and once with its checksum made
// right, as a hostile writer would.
#include <fmt/format.h>

#include <cstdint>
#include <string>

#include "checkpoint/block_checksums.h"
#include "checkpoint/manifest.h"
#include "ullage/error.h"

namespace {

void Parse(const std::string& text) {
  try {
    const auto manifest = ullage::checkpoint::ParseManifest("m", text);
    // What is accepted is what would be written, up to the order of keys and white space.
    ullage::checkpoint::ParseManifest("m", ullage::checkpoint::ToText(manifest));
  } catch (const ullage::IoError&) {
  } catch (const ullage::UnsupportedError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  std::string text(reinterpret_cast<const char*>(data), bytes);
  Parse(text);
  if (const std::size_t end = text.rfind(",\n\"checksum\""); end != std::string::npos) {
    text.resize(end);
  }
  Parse(text + fmt::format(",\n\"checksum\": \"{:016x}\"\n}}\n",
                           ullage::checkpoint::Checksum(text.data(), std::ssize(text))));
  return 0;
}
