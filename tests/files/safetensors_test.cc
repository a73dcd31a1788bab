#include "files/safetensors.h"

#include <vector>

#include "files/faulty_file_system.h"
#include "scratch.h"
#include "ullage/error.h"

namespace ullage::files {
namespace {

using testsupport::MessageOf;
using testsupport::RawSafetensors;
using testsupport::Scratch;

// "b" lies before "a"; "none" is empty.
std::string Small() {
  return RawSafetensors(
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"I32","shape":[2,3],"data_offsets":[2,26]},)"
      R"("b":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},)"
      R"("none":{"dtype":"F32","shape":[4,0],"data_offsets":[26,26]}}  )",
      std::string("\x80\x3f", 2) +
          std::string("\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0\5\0\0\0\6\0\0\0", 24));
}

TEST(Safetensors, ListsTensorsInTheOrderOfTheirBytes) {
  Scratch scratch;
  PosixFileSystem fs;
  const auto file = SafetensorsFile::Open(fs, scratch.Write("t", Small()));
  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.tensors()[0].name, "b");
  EXPECT_EQ(file.tensors()[0].numel, 1);
  EXPECT_EQ(file.tensors()[1].name, "a");
  EXPECT_EQ(file.Get("a").type, ElementType::kI32);
  EXPECT_EQ(file.Get("a").shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(file.Get("a").bytes, 24);
  EXPECT_EQ(file.Get("none").numel, 0);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.Find("c"), nullptr);
  EXPECT_THROW(file.Get("c"), IoError);
}

TEST(Safetensors, ReadsExactlyTheElementsAskedFor) {
  Scratch scratch;
  PosixFileSystem fs;
  const auto file = SafetensorsFile::Open(fs, scratch.Write("t", Small()));
  std::int32_t values[4] = {0, 0, 0, -7};
  file.Read("a", 2, 3, values);
  EXPECT_EQ(std::vector<int>(values, values + 4), (std::vector<int>{3, 4, 5, -7}));
  std::uint16_t one = 0;
  file.Read("b", 0, 1, &one);
  EXPECT_EQ(one, 0x3f80);
  file.Read("none", 0, 0, nullptr);
  EXPECT_THROW(file.Read("a", 4, 3, values), IoError);
  EXPECT_THROW(file.Read("a", -1, 1, values), IoError);
  EXPECT_THROW(file.Read("a", INT64_MAX, INT64_MAX, values), IoError);
}

TEST(Safetensors, ABrokenDiskIsAnErrorAtOpeningAndAtReading) {
  Scratch scratch;
  PosixFileSystem real;
  scratch.Write("t", Small());
  for (std::int64_t read : {0, 1}) {
    FaultyFileSystem fs(real, {.failed_read_at = read});
    EXPECT_THROW(SafetensorsFile::Open(fs, scratch / "t"), IoError) << read;
  }
  FaultyFileSystem fs(real, {.failed_read_at = 2});
  const auto file = SafetensorsFile::Open(fs, scratch / "t");
  std::int32_t value = 0;
  EXPECT_NE(MessageOf<IoError>([&] { file.Read("a", 0, 1, &value); }).find("Input/output error"),
            std::string::npos);
}

TEST(Safetensors, EveryTypeHasItsSizeAndName) {
  EXPECT_EQ(ElementBytes(ElementType::kF64), 8);
  EXPECT_EQ(ElementBytes(ElementType::kBF16), 2);
  EXPECT_EQ(ElementBytes(ElementType::kBool), 1);
  EXPECT_EQ(ElementBytes(ElementType::kC64), 8);
  EXPECT_EQ(Name(ElementType::kF8E4M3), "F8_E4M3");
  EXPECT_EQ(Name(ElementType::kC64), "C64");
  EXPECT_EQ(ToElementType(DType::kBFloat16), ElementType::kBF16);
  EXPECT_EQ(ToElementType(DType::kFloat16), ElementType::kF16);
  EXPECT_EQ(ToElementType(DType::kFloat32), ElementType::kF32);
}

}  // namespace
}  // namespace ullage::files
