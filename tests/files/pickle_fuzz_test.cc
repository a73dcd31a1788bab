// Damaged files of torch.save: whatever bits are flipped and wherever a file ends, the answer is a
// value or an IoError. Run under the address sanitizer by the asan preset.
#include <random>

#include <gtest/gtest.h>

#include "files/faulty_file_system.h"
#include "files/torch_file.h"
#include "memory_file.h"
#include "torch_zip.h"
#include "ullage/error.h"

namespace ullage::files {
namespace {

using testsupport::LittleEndian;
using testsupport::PickleText;

// One of each kind of value, and tensors of both layouts.
std::string SamplePickle() {
  return PickleText()
      .Raw("}(")
      .Text("a")
      .Tensor("0", 12, 2, {2, 3}, {3, 1})
      .Text("b")
      .Tensor("0", 12, 0, {3, 3}, {1, 4})
      .Text("c")
      .Raw("(K\1M\2\3J\4\5\6\7G\1\2\3\4\5\6\7\x08\x88\x89Nl")
      .Text("d")
      .Class("pkg", "Thing")
      .Raw(")\x81}b")
      .Text("e")
      .Class("collections", "OrderedDict")
      .Raw(")R")
      .Op('u')
      .End();
}

std::string SampleLegacy() {
  const auto pickle = [](const std::string& bytes) { return "\x80\2" + bytes + "."; };
  return pickle("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19") + pickle("M\xe9\3") +
         pickle("}") + SamplePickle() + pickle("]X\1" + std::string(3, '\0') + "0a") +
         LittleEndian(12, 8) + std::string(48, 'x');
}

bool Refused(FileSystem& fs) {
  try {
    const TorchFile file = TorchFile::Open(fs, "f.pt");
    const PickleValue root = file.root();
    for (std::size_t i = 0; root.kind() == PickleKind::kDict && i < root.size(); ++i) {
      const PickleValue value = root.ValueAt(i);
      if (value.kind() != PickleKind::kTensor) continue;
      const PickledTensor& tensor = value.Tensor("t");
      const std::int64_t count = std::min<std::int64_t>(tensor.numel, 1000);
      std::vector<char> bytes(static_cast<std::size_t>(count * ElementBytes(tensor.type)));
      file.Read(tensor, tensor.numel - count, count, bytes.data());
    }
  } catch (const IoError&) {
    return true;
  } catch (const UnsupportedError&) {  // another byte order
    return true;
  }
  return false;
}

class PickleFuzz : public testing::TestWithParam<bool> {
 protected:
  // The CRC of the pickle is left out, so that damage to it reaches the machine.
  const std::string bytes_ = GetParam() ? SampleLegacy() : [] {
    std::string zip = testsupport::TorchZip(SamplePickle(), {{"0", std::string(48, 'x')}});
    return zip.replace(zip.find("PK\1\2") + 16, 4, std::string(4, '\0'));
  }();
};

TEST_P(PickleFuzz, FlippedBitsGiveValuesOrErrors) {
  testsupport::MemoryFile real(bytes_);
  EXPECT_FALSE(Refused(real));
  std::mt19937_64 random(11);
  int refused = 0;
  constexpr int kCases = 20000;
  for (int i = 0; i < kCases; ++i) {
    Faults faults;
    for (std::uint64_t flips = 1 + random() % 3; flips > 0; --flips) {
      faults.flipped_bits.push_back(
          {static_cast<std::int64_t>(random() % bytes_.size()), static_cast<int>(random() % 8)});
    }
    FaultyFileSystem fs(real, faults);
    refused += Refused(fs);
  }
  EXPECT_GT(refused, kCases / 3);
  EXPECT_LT(refused, kCases);
}

TEST_P(PickleFuzz, AFileCutAnywhereIsRefused) {
  testsupport::MemoryFile real(bytes_);
  for (std::size_t end = 0; end < bytes_.size(); ++end) {
    FaultyFileSystem fs(real, {.truncated_to = static_cast<std::int64_t>(end)});
    EXPECT_TRUE(Refused(fs)) << end;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, PickleFuzz, testing::Bool(), [](const auto& formats) {
  return std::string(formats.param ? "BeforeZip" : "Zip");
});

}  // namespace
}  // namespace ullage::files
