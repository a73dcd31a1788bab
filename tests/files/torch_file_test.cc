// Files that torch.save wrote, read and compared with what Python says is in them.
#include "files/torch_file.h"

#include <cstring>
#include <random>

#include "run_python.h"
#include "torch_zip.h"
#include "ullage/error.h"

namespace ullage::files {
namespace {

using testsupport::MessageOf;
using testsupport::PickleText;
using testsupport::Scratch;
using testsupport::TorchZip;

// Written once for all tests of the suite: loading torch takes seconds.
class TorchFileTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    scratch_ = new Scratch();
    testsupport::RunPython(*scratch_, R"(
import collections, torch, safetensors.torch
torch.manual_seed(0)
base = torch.randn(5, 6, 7)
linear = torch.nn.Linear(3, 2)
tagged = torch.randn(4)
tagged.tag = "attribute"
tensors = {
    "tagged": tagged,
    "base": base, "view": base[1:4], "transposed": base.permute(2, 0, 1), "step": base[::2, 1:, ::3],
    "expanded": base[0, :, :1].expand(6, 4), "scalar": torch.tensor(2.5), "none": torch.zeros(3, 0),
    "f64": torch.randn(4, dtype=torch.float64), "f16": torch.randn(3).half(),
    "bf16": torch.randn(3).bfloat16(), "i64": torch.arange(3), "i32": torch.arange(3).int(),
    "i16": torch.arange(3).short(), "i8": torch.arange(3).char(), "u8": torch.arange(3).byte(),
    "bool": torch.tensor([True, False]), "parameter": linear.weight, "column": base[:, 3, 2],
}
unusual = {"f8": torch.randn(5).to(torch.float8_e4m3fn), "u16": torch.arange(4).to(torch.uint16)}
saved = {"tensors": tensors, "state": linear.state_dict(), "size": base.size(), "int": -5,
         "type": torch.float16, "device": torch.device("cpu"), "text": "\u00e9", "bytes": b"\xff\0",
         "list": [1, 2.5, None, True, (1, 2, 3, 4)], "set": {1}, "big": 1 << 70,
         "ordered": collections.OrderedDict([("a", 1)])}
both = saved | {"unusual": unusual}
for protocol in (2, 3, 4, 5):
    torch.save(both, f"p{protocol}.pt", pickle_protocol=protocol)
torch.save(saved, "legacy.pt", _use_new_zipfile_serialization=False)
torch.save(saved["list"], "list.pt", _use_new_zipfile_serialization=False)
torch.serialization.set_crc32_options(False)
torch.save(both, "no_crc.pt")
# More bytes between the first and the last element than are read at once.
wide = {"runs": torch.arange(9_000_000, dtype=torch.int32).view(3000, 3000)[:, :7]}
wide["single"] = wide["runs"].t()
torch.save(wide, "wide.pt")
torch.jit.script(linear).save("script.pt")
safetensors.torch.save_file({k: v.detach().clone().contiguous() for k, v in tensors.items()} |
                            {k: v.clone().contiguous() for k, v in (unusual | wide).items()}, "expected.safetensors")
)");
  }
  static void TearDownTestSuite() { delete scratch_; }

  static const Scratch& scratch() { return *scratch_; }

  // Every tensor as a whole and in random ranges.
  static void ExpectAsInPython(const TorchFile& file, const SafetensorsFile& expected,
                               const PickleValue& tensors) {
    std::mt19937_64 random(1);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::string name = tensors.KeyAt(i).String("name");
      SCOPED_TRACE(name);
      const PickledTensor& tensor = tensors.ValueAt(i).Tensor(name);
      const TensorInfo& info = expected.Get(name);
      EXPECT_EQ(tensor.shape, info.shape);
      EXPECT_EQ(tensor.type, info.type);
      std::vector<char> wanted(static_cast<std::size_t>(info.bytes)), got(wanted.size());
      expected.Read(info, 0, info.numel, wanted.data());
      file.Read(tensor, 0, tensor.numel, got.data());
      EXPECT_EQ(wanted, got);
      const auto numel = static_cast<std::uint64_t>(tensor.numel);
      for (int range = 0; range < 10 && numel > 0; ++range) {
        const auto first = static_cast<std::int64_t>(random() % numel);
        const auto count = static_cast<std::int64_t>(
            random() % std::min<std::uint64_t>(1000, numel - static_cast<std::uint64_t>(first)) +
            1);
        const auto element = static_cast<std::size_t>(ElementBytes(info.type));
        file.Read(tensor, first, count, got.data());
        EXPECT_EQ(std::memcmp(got.data(), wanted.data() + static_cast<std::size_t>(first) * element,
                              static_cast<std::size_t>(count) * element),
                  0)
            << first << " + " << count;
      }
    }
  }

 private:
  static inline Scratch* scratch_ = nullptr;
};

TEST_F(TorchFileTest, TensorsAreAsPythonReadsThem) {
  PosixFileSystem fs;
  const auto expected = SafetensorsFile::Open(fs, scratch() / "expected.safetensors");
  for (const std::string name : {"p2.pt", "p5.pt", "no_crc.pt", "legacy.pt"}) {
    SCOPED_TRACE(name);
    const TorchFile file = TorchFile::Open(fs, scratch() / name);
    ASSERT_EQ(file.root().Get("tensors").size(), 19u);
    ExpectAsInPython(file, expected, file.root().Get("tensors"));
    if (name != "legacy.pt") ExpectAsInPython(file, expected, file.root().Get("unusual"));
  }
  const TorchFile wide = TorchFile::Open(fs, scratch() / "wide.pt");
  ASSERT_EQ(wide.root().size(), 2u);
  ExpectAsInPython(wide, expected, wide.root());
}

TEST_F(TorchFileTest, ValuesAreAsInPythonInEveryProtocol) {
  PosixFileSystem fs;
  for (const std::string name : {"p2.pt", "p3.pt", "p4.pt", "p5.pt", "legacy.pt"}) {
    SCOPED_TRACE(name);
    const TorchFile file = TorchFile::Open(fs, scratch() / name);
    const PickleValue root = file.root();
    EXPECT_EQ(root.Get("int").Integer("int"), -5);
    EXPECT_EQ(root.Get("size").kind(), PickleKind::kTuple);
    EXPECT_EQ(root.Get("size")[2].Integer("size"), 7);
    EXPECT_EQ(root.Get("type").ClassName(), "torch.float16");
    EXPECT_EQ(root.Get("device").ClassName(), "torch.device");
    EXPECT_EQ(root.Get("text").String("text"), "\xc3\xa9");
    EXPECT_EQ(root.Get("big").kind(), PickleKind::kBigInt);
    EXPECT_EQ(root.Get("set").kind(), PickleKind::kSet);
    EXPECT_EQ(root.Get("ordered").Get("a").Integer("a"), 1);
    EXPECT_EQ(root.Get("state").Get("weight").Tensor("weight").shape,
              (std::vector<std::int64_t>{2, 3}));
    const PickleValue list = root.Get("list");
    EXPECT_EQ(list.size(), 5u);
    EXPECT_EQ(list[1].Number("list"), 2.5);
    EXPECT_TRUE(list[2].IsNone());
    EXPECT_TRUE(list[3].Bool("list"));
    EXPECT_EQ(list[4].size(), 4u);
  }
  EXPECT_EQ(TorchFile::Open(fs, scratch() / "list.pt").root().size(), 5u);
}

TEST_F(TorchFileTest, AProgramIsRefused) {
  PosixFileSystem fs;
  EXPECT_NE(MessageOf<UnsupportedError>([&] {
              TorchFile::Open(fs, scratch() / "script.pt");
            }).find("is a TorchScript archive"),
            std::string::npos);
}

std::string OpenError(const std::string& bytes) {
  Scratch scratch;
  PosixFileSystem fs;
  return MessageOf<IoError>([&] { TorchFile::Open(fs, scratch.Write("f.pt", bytes)); });
}

TEST(TorchFile, FilesThatAreNotTorchsAreNamed) {
  const std::string pickle = PickleText().Tensor("0", 2, 0, {2}, {1}).End();
  const auto number = [](const std::string& bytes) { return "\x80\2" + bytes + "."; };
  const std::string legacy = number("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19");
  std::string compressed = TorchZip(pickle, {{"0", "12345678"}});
  for (const auto& [mark, at] : {std::pair("PK\1\2", 10), {"PK\3\4", 8}}) {
    const std::size_t second = compressed.find(mark, compressed.find(mark) + 1);
    compressed[second + static_cast<std::size_t>(at)] = 8;
  }
  const struct {
    std::string bytes;
    const char* part;
  } cases[] = {
      {"", "neither a zip file nor a pickle"},
      {"version https://git-lfs", "run git lfs pull"},
      {testsupport::StoredZip({{"x", "1"}}), "a zip file without data.pkl"},
      {compressed, "entry \"t/byteorder\" is compressed"},
      {TorchZip(pickle, {}), "storage \"0\" is not in the archive"},
      {TorchZip(pickle, {{"0", "1234567"}}), "storage \"0\" has 7 bytes in the archive"},
      {TorchZip(pickle, {{"0", "123456789abc"}}), "its pickle says 8"},
      {TorchZip(pickle + "N.", {{"0", "12345678"}}), "goes on after its end"},
      {number("K\1"), "a pickle, but not one of torch.save"},
      {legacy + number("K\1"), "protocol 1, expected 1001"},
      {legacy + number("M\xe9\3") + number("}") + pickle + number("]"), "storage of its pickle"},
      {legacy + number("M\xe9\3") + number("}") + pickle +
           number("]X\1" + std::string(3, '\0') + "9a"),
       "storage \"9\" is unknown"},
      {legacy + number("M\xe9\3") + number("}") + pickle +
           number("]X\1" + std::string(3, '\0') + "0a") + testsupport::LittleEndian(3, 8) + "1234",
       "storage \"0\" has 3 elements, its pickle says 2"},
      {legacy + number("M\xe9\3") + number("}") + pickle +
           number("]X\1" + std::string(3, '\0') + "0a") + testsupport::LittleEndian(2, 8) + "1234",
       "8 bytes are expected, 4 are left"},
  };
  for (const auto& c : cases) {
    const std::string message = OpenError(c.bytes);
    EXPECT_NE(message.find(c.part), std::string::npos) << c.part << "\n" << message;
  }
}

TEST(TorchFile, OnlyRangesOfTheTensorAreRead) {
  Scratch scratch;
  PosixFileSystem fs;
  const TorchFile file = TorchFile::Open(
      fs, scratch.Write("f.pt", TorchZip(PickleText().Tensor("0", 4, 1, {2}, {2}).End(),
                                         {{"0", "aaaabbbbccccdddd"}})));
  const PickledTensor& tensor = file.root().Tensor("t");
  char out[8] = {};
  file.Read(tensor, 0, 2, out);
  EXPECT_EQ(std::string(out, 8), "bbbbdddd");
  file.Read(tensor, 2, 0, out);
  for (const auto& [first, count] : {std::pair(0, 3), {2, 1}, {-1, 1}, {0, -1}}) {
    EXPECT_THROW(file.Read(tensor, first, count, out), IoError);
  }
}

TEST(TorchFile, ABigEndianFileIsRefused) {
  Scratch scratch;
  PosixFileSystem fs;
  scratch.Write("f.pt", testsupport::StoredZip(
                            {{"t/data.pkl", PickleText().Op('N').End()}, {"t/byteorder", "big"}}));
  EXPECT_NE(
      MessageOf<UnsupportedError>([&] { TorchFile::Open(fs, scratch / "f.pt"); }).find("\"big\""),
      std::string::npos);
}

}  // namespace
}  // namespace ullage::files
