// libFuzzer: any bytes as a file of torch.save, or as the data.pkl of one.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "files/torch_file.h"
#include "memory_file.h"
#include "torch_zip.h"
#include "ullage/error.h"

namespace {

using ullage::files::PickleKind;
using ullage::files::PickleValue;
using ullage::files::TorchFile;

// Reads the ends of tensors and asks every value what it is, down to some depth.
void Walk(const TorchFile& file, const PickleValue& value, int depth, int& left) {
  if (depth == 0 || --left < 0) return;
  (void)value.Describe();
  (void)value.Find("state");
  if (value.kind() == PickleKind::kTensor) {
    const auto& tensor = value.Tensor("t");
    const std::int64_t count = std::min<std::int64_t>(tensor.numel, 100);
    std::vector<char> out(
        static_cast<std::size_t>(count * ullage::files::ElementBytes(tensor.type)));
    file.Read(tensor, 0, count, out.data());
    file.Read(tensor, tensor.numel - count, count, out.data());
  }
  const bool dict = value.kind() == PickleKind::kDict;
  for (std::size_t i = 0; i < value.size() && left > 0; ++i) {
    Walk(file, dict ? value.ValueAt(i) : value[i], depth - 1, left);
    if (dict) Walk(file, value.KeyAt(i), depth - 1, left);
  }
}

void Read(const std::string& bytes) {
  testsupport::MemoryFile fs(bytes);
  try {
    const TorchFile file = TorchFile::Open(fs, "f");
    int left = 1000;
    Walk(file, file.root(), 6, left);
  } catch (const ullage::IoError&) {
  } catch (const ullage::UnsupportedError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  const std::string text(reinterpret_cast<const char*>(data), bytes);
  Read(text);
  // With right sums around it, which a fuzzer does not guess.
  if (text.starts_with('\x80')) Read(testsupport::TorchZip(text, {{"0", std::string(256, 'x')}}));
  return 0;
}
