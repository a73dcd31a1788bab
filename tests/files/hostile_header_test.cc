// Headers that lie: each is refused with the place and the expectation.
#include <string>
#include <vector>

#include "files/safetensors.h"
#include "scratch.h"
#include "ullage/error.h"

namespace ullage::files {
namespace {

using testsupport::MessageOf;
using testsupport::RawSafetensors;
using testsupport::Scratch;

std::string Refusal(const std::string& bytes) {
  Scratch scratch;
  PosixFileSystem fs;
  scratch.Write("t", bytes);
  const std::string message = MessageOf<IoError>([&] { SafetensorsFile::Open(fs, scratch / "t"); });
  EXPECT_EQ(message.find(scratch / "t"), 0u) << message;
  EXPECT_NE(message.find("\nhint: "), std::string::npos) << message;
  return message;
}

std::string Length(std::uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i));
  return bytes;
}

TEST(HostileHeader, LengthsBeyondTheFileAreRefusedWithoutAllocating) {
  for (std::uint64_t length :
       {std::uint64_t{3}, std::uint64_t{1} << 60, ~std::uint64_t{0}, std::uint64_t{1} << 63}) {
    const std::string message = Refusal(Length(length) + "{}");
    EXPECT_NE(message.find("bytes 0 to 7 give the header " + std::to_string(length)),
              std::string::npos)
        << message;
  }
}

TEST(HostileHeader, AHeaderOfMoreThan100MegabytesIsRefusedEvenWhenTheFileHoldsIt) {
  Scratch scratch;
  PosixFileSystem fs;
  scratch.Write("t", Length(100'000'001) + "{}");
  std::filesystem::resize_file(scratch / "t", 100'000'009);  // sparse
  EXPECT_NE(MessageOf<IoError>([&] {
              SafetensorsFile::Open(fs, scratch / "t");
            }).find("at most 100000000 are allowed"),
            std::string::npos);
}

TEST(HostileHeader, TruncatedFilesAreRefused) {
  const std::string whole =
      RawSafetensors(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "12345678");
  for (std::size_t size = 0; size < whole.size(); ++size) Refusal(whole.substr(0, size));
}

TEST(HostileHeader, FilesOftenFoundUnderTheNameAreRecognised) {
  EXPECT_NE(Refusal("version https://git-lfs.github.com/spec/v1\n").find("git lfs pull"),
            std::string::npos);
  EXPECT_NE(Refusal(std::string("PK\3\4\0\0\0\0\0\0\0\0", 12)).find("zip or PyTorch"),
            std::string::npos);
}

struct Case {
  const char* header;
  const char* says;
};

TEST(HostileHeader, EachLieIsNamed) {
  const std::vector<Case> cases = {
      {"", "expected '{'"},
      {" {}", "expected '{'"},
      {"[]", "expected '{'"},
      {"{", "byte 9:"},
      {"{} {}", "byte 11:"},
      {"{\"a\xff\":1}", "byte 11:"},
      {R"({"a":1})", "has the number 1 where none belongs"},
      {R"({"a":[]})", "has a list where none belongs"},
      {R"({"a":null})", "has null"},
      {R"({"a":{}})", "needs dtype, shape and two data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[2]}})", "needs dtype, shape and two data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", "two data_offsets"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}})", "more than two"},
      {R"({"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})", "unknown dtype \"F31\""},
      {R"({"a":{"dtype":7,"shape":[2],"data_offsets":[0,8]}})", "the number 7 where none"},
      {R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "has -2"},
      {R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", "has 2.0"},
      {R"({"a":{"dtype":"F32","shape":["2"],"data_offsets":[0,8]}})", "has the string \"2\""},
      {R"({"a":{"dtype":"F32","shape":[[2]],"data_offsets":[0,8]}})", "a list where none"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[-1,8]}})", "has -1"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "run backwards"},
      {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", "needs 12 bytes"},
      {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})", "file holds 8 bytes"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "end at data byte 4"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "starts at data byte 4"},
      {R"({"a":{"dtype":"U8","shape":[6],"data_offsets":[0,6]},
           "b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
       "without overlap or hole"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},
           "b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
       "without overlap or hole"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
           "a":{"dtype":"F32","shape":[0],"data_offsets":[8,8]}})",
       "\"a\" comes twice"},
      {R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "dtype twice"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})", "unknown key \"x\""},
      {R"({"__metadata__":{"a":1}})", "__metadata__ has the number 1"},
      {R"({"__metadata__":{"a":{}}})", "__metadata__ has an object"},
      {R"({"__metadata__":{"a":"b","a":"c"}})", "\"a\" comes twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", "\"__metadata__\" comes twice"},
      // 2^31 * 2^31 * 4 bytes, 2^63 elements, and a product that wraps around to 8 bytes.
      {R"({"a":{"dtype":"F32","shape":[2147483648,2147483648],"data_offsets":[0,8]}})", "2^63"},
      {R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,8]}})", "too large"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,8]}})", "2^63"},
      {R"({"a":{"dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}})", "2^63"},
      {R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[18446744073709551608,18446744073709551616]}})",
       "too large"},
      {R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[1e3,8]}})", "has 1e3"},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.header);
    const std::string message = Refusal(RawSafetensors(one.header, "12345678"));
    EXPECT_NE(message.find(one.says), std::string::npos) << message;
  }
}

TEST(HostileHeader, DeepNestingAndManyDimensionsAreRefusedAtOnce) {
  Refusal(RawSafetensors("{\"a\":" + std::string(1'000'000, '['), ""));
  std::string shape = "1";
  for (int i = 0; i < 64; ++i) shape += ",1";
  const std::string message = Refusal(RawSafetensors(
      R"({"a":{"dtype":"U8","shape":[)" + shape + R"(],"data_offsets":[0,1]}})", "1"));
  EXPECT_NE(message.find("more than 64 dimensions"), std::string::npos) << message;
}

TEST(HostileHeader, ALongNameDoesNotMakeALongMessage) {
  const std::string header = "{\"" + std::string(1'000'000, 'x') + "\":1}";
  EXPECT_LT(Refusal(RawSafetensors(header, "")).size(), 1000u);
}

}  // namespace
}  // namespace ullage::files
