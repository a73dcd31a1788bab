// Damaged files: whatever bits are flipped and wherever a file ends, the answer is a value or an
// IoError. Run under the address sanitizer by the asan preset.
#include <random>

#include "files/faulty_file_system.h"
#include "files/safetensors.h"
#include "files/safetensors_writer.h"
#include "files/token_file.h"
#include "files/weight_source.h"
#include "memory_file.h"
#include "scratch.h"
#include "ullage/error.h"

namespace ullage::files {
namespace {

using testsupport::Scratch;

// A token file with a small tensor of each kind; also an ordinary safetensors file.
std::int64_t WriteSample(const std::string& path) {
  PosixFileSystem fs;
  SafetensorsWriter writer(fs, path,
                           {{"offsets", ElementType::kI64, {4}},
                            {"labels", ElementType::kI64, {3}},
                            {"input_ids", ElementType::kI32, {6}}},
                           {{"format", "ullage-tokens"},
                            {"version", "1"},
                            {"tokenizer", "tiny"},
                            {"tokenizer_sha256", "00"},
                            {"pad_token_id", "0"},
                            {"num_labels", "2"},
                            {"label_names", R"(["no","yes"])"}});
  const std::int64_t offsets[] = {0, 2, 3, 6}, labels[] = {1, 0, -100};
  const std::int32_t ids[] = {5, 6, 7, 8, 9, 10};
  writer.Append(offsets, sizeof offsets);
  writer.Append(labels, sizeof labels);
  writer.Append(ids, sizeof ids);
  writer.Finish();
  return static_cast<std::int64_t>(std::filesystem::file_size(path));
}

void ReadEverything(FileSystem& fs, const std::string& path) {
  const auto file = SafetensorsFile::Open(fs, path);
  for (const TensorInfo& tensor : file.tensors()) {
    std::vector<char> bytes(static_cast<std::size_t>(tensor.bytes));
    file.Read(tensor, 0, tensor.numel, bytes.data());
  }
}

void ReadRecords(FileSystem& fs, const std::string& path) {
  const auto file = TokenFile::Open(fs, path);
  for (std::int64_t record = 0; record < file.records(); ++record) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(file.Length(record)));
    file.ReadTokens(file.Begin(record), file.Length(record), ids.data());
  }
}

// True when `read` refused the file, with the errors allowed for files from outside.
template <typename Read>
bool Refused(Read read) {
  try {
    read();
  } catch (const IoError&) {
    return true;
  } catch (const UnsupportedError&) {  // a version that does not exist yet
    return true;
  }
  return false;
}

TEST(Fuzz, FlippedBitsGiveValuesOrIoErrors) {
  Scratch scratch;
  const std::int64_t size = WriteSample(scratch / "t");
  testsupport::MemoryFile real(scratch.Read("t"));
  std::mt19937_64 random(7);
  int refused = 0, refused_tokens = 0;
  constexpr int kCases = 20000;
  for (int i = 0; i < kCases; ++i) {
    Faults faults;
    for (std::uint64_t flips = 1 + random() % 4; flips > 0; --flips) {
      faults.flipped_bits.push_back(
          {static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(size)),
           static_cast<int>(random() % 8)});
    }
    FaultyFileSystem fs(real, faults);
    refused += Refused([&] { ReadEverything(fs, scratch / "t"); });
    refused_tokens += Refused([&] { ReadRecords(fs, scratch / "t"); });
  }
  // Most of the file is header, most damage in it breaks the format; damage to ids stays unseen.
  EXPECT_GT(refused, kCases / 3);
  EXPECT_LT(refused, kCases);
  EXPECT_GT(refused_tokens, refused);
}

TEST(Fuzz, EverySingleFlippedBitIsSurvived) {
  Scratch scratch;
  const std::int64_t size = WriteSample(scratch / "t");
  testsupport::MemoryFile real(scratch.Read("t"));
  for (std::int64_t bit = 0; bit < 8 * size; ++bit) {
    FaultyFileSystem fs(real, {.flipped_bits = {{bit / 8, static_cast<int>(bit % 8)}}});
    Refused([&] { ReadRecords(fs, scratch / "t"); });
    Refused([&] { ReadEverything(fs, scratch / "t"); });
  }
}

TEST(Fuzz, EveryShorterFileIsRefused) {
  Scratch scratch;
  const std::int64_t size = WriteSample(scratch / "t");
  testsupport::MemoryFile real(scratch.Read("t"));
  for (std::int64_t end = 0; end < size; ++end) {
    FaultyFileSystem fs(real, {.truncated_to = end});
    EXPECT_TRUE(Refused([&] { ReadEverything(fs, scratch / "t"); })) << end;
  }
  FaultyFileSystem whole(real, {.truncated_to = size});
  EXPECT_FALSE(Refused([&] { ReadEverything(whole, scratch / "t"); }));
}

TEST(Fuzz, ADamagedIndexIsAnIoError) {
  Scratch scratch;
  PosixFileSystem real;
  WriteSample(scratch / "x.safetensors");
  const std::string index =
      R"({"metadata":{"total_size":1,"more":[{"x":null}]},"weight_map":{"offsets":"x.safetensors",)"
      R"("labels":"x.safetensors","input_ids":"x.safetensors"}})";
  std::mt19937_64 random(8);
  int refused = 0;
  for (int i = 0; i < 500; ++i) {
    std::string damaged = index;
    for (std::uint64_t changes = random() % 4; changes > 0; --changes) {
      damaged[random() % damaged.size()] = static_cast<char>(random());
    }
    scratch.Write("model.safetensors.index.json", damaged);
    refused += Refused([&] { WeightFiles::Open(real, scratch.path()); });
  }
  EXPECT_GT(refused, 150);
  EXPECT_LT(refused, 500);
}

}  // namespace
}  // namespace ullage::files
