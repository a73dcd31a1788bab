#include "files/pickle.h"

#include "memory_file.h"
#include "scratch.h"
#include "torch_zip.h"
#include "ullage/error.h"

namespace ullage::files {
namespace {

using testsupport::LittleEndian;
using testsupport::MemoryFile;
using testsupport::MessageOf;
using testsupport::PickleText;

PickleData Read(const std::string& bytes) {
  MemoryFile fs(bytes);
  const auto file = fs.OpenForRead("p");
  ByteReader reader(*file, 0, file->size(), "data.pkl ");
  PickleData data = ReadPickle(reader);
  EXPECT_EQ(reader.left(), 0);
  return data;
}

PickleData Read(const PickleText& text) {
  return Read(text.End());
}

std::string ReadError(const std::string& bytes) {
  return MessageOf<IoError>([&] { Read(bytes); });
}

PickleValue Root(const PickleData& data) {
  return {data, data.root};
}

TEST(Pickle, ReadsNumbersOfEveryWidth) {
  const struct {
    std::string bytes;
    std::int64_t value;
  } cases[] = {{"K\xff", 255},
               {"M\xff\xff", 65535},
               {std::string("J\xfe\xff\xff\xff"), -2},
               {std::string("\x8a\x00", 2), 0},
               {"\x8a\x01\x80", -128},
               {std::string("\x8a\x03\x00\x00\x01", 5), 65536},
               {"\x8a\x08" + LittleEndian(1ULL << 63, 8), INT64_MIN},
               {"\x8b" + LittleEndian(2, 4) + "\x01\x01", 257}};
  for (const auto& c : cases) {
    const PickleData data = Read(PickleText().Raw(c.bytes));
    EXPECT_EQ(Root(data).Integer("x"), c.value);
  }
  const PickleData real = Read(PickleText().Raw(std::string("G\xc0\x04\0\0\0\0\0\0", 9)));
  EXPECT_EQ(Root(real).Number("x"), -2.5);
  const PickleData wide = Read(PickleText().Raw("\x8a\x0a" + std::string(10, '\1')));
  EXPECT_EQ(Root(wide).kind(), PickleKind::kBigInt);
  EXPECT_TRUE(Root(Read(PickleText().Op('\x88'))).kind() == PickleKind::kBool);
}

TEST(Pickle, ReadsContainersAsPythonMeansThem) {
  // {"a": [1, 2, (None,)], "b": {3}}, with the key "a" remembered and given twice.
  PickleText text(5);
  text.Raw("}\x94(")
      .Text("a")
      .Raw(
          "\x94]K\1a(K\2N\x85"
          "e")
      .Text("b")
      .Raw("\x8f(K\3\x90h\1K\7u");
  const PickleData data = Read(text);
  const PickleValue root = Root(data);
  EXPECT_EQ(root.size(), 3u);
  EXPECT_EQ(root.Get("a").Integer("a"), 7) << "the last value of a key counts";
  EXPECT_EQ(root.ValueAt(0).size(), 3u);
  EXPECT_TRUE(root.ValueAt(0)[2][0].IsNone());
  EXPECT_EQ(root.Get("b").kind(), PickleKind::kSet);
  EXPECT_EQ(root.Get("b")[0].Integer("b"), 3);
  EXPECT_FALSE(root.Find("c").has_value());
  EXPECT_NE(MessageOf<IoError>([&] { root.Get("c"); }).find("has no \"c\""), std::string::npos);
  EXPECT_NE(MessageOf<IoError>([&] {
              root.Get("b").Tensor("the weight");
            }).find("p: the weight is a set of 1, expected a tensor"),
            std::string::npos);
}

TEST(Pickle, AListMayContainItself) {
  const PickleData data = Read(PickleText().Raw(std::string("]q\0h\0a", 6)));
  EXPECT_EQ(Root(data)[0][0][0].size(), 1u);
}

TEST(Pickle, NothingIsCalled) {
  testsupport::Scratch scratch;
  const std::string command = "touch " + (scratch / "ran");
  const PickleData data =
      Read(PickleText().Class("posix", "system").Op('(').Text(command).Raw("tR"));
  EXPECT_FALSE(scratch.Exists("ran"));
  EXPECT_EQ(Root(data).kind(), PickleKind::kObject);
  EXPECT_EQ(Root(data).ClassName(), "posix.system");
}

TEST(Pickle, UnknownClassesKeepNameStateAndItems) {
  const PickleData data = Read(PickleText(4)
                                   .Raw("\x8c\x03pkg\x8c\x05Piece\x93)\x81}(")
                                   .Text("numel")
                                   .Raw("K\x05")
                                   .Text("start")
                                   .Raw("K\x02ub"));
  EXPECT_EQ(Root(data).ClassName(), "pkg.Piece");
  EXPECT_EQ(Root(data).Get("start").Integer("start"), 2);
  // An enumerator is its number.
  const PickleData stage = Read(PickleText().Class("pkg", "Stage").Raw("K\3\x85R"));
  EXPECT_EQ(Root(stage).Integer("stage"), 3);
  // A class made from a dict, like defaultdict.
  const PickleData items =
      Read(PickleText().Class("collections", "defaultdict").Raw(")R").Text("k").Raw("K\4s"));
  EXPECT_EQ(Root(items).Get("k").Integer("k"), 4);
}

TEST(Pickle, TensorsReferToPartsOfStorages) {
  const PickleData data = Read(PickleText()
                                   .Raw("(")
                                   .Tensor("0", 20, 2, {3, 4}, {4, 1})
                                   .Tensor("0", 20, 1, {4, 2}, {1, 9})
                                   .Tensor("1", 0, 0, {0, 3}, {3, 1}, "HalfStorage")
                                   .Op('t'));
  const PickledTensor& whole = Root(data)[0].Tensor("t");
  EXPECT_EQ(whole.shape, (std::vector<std::int64_t>{3, 4}));
  EXPECT_EQ(whole.numel, 12);
  EXPECT_TRUE(whole.contiguous);
  EXPECT_EQ(whole.last, 13);
  const PickledTensor& part = Root(data)[1].Tensor("t");
  EXPECT_FALSE(part.contiguous);
  EXPECT_EQ(part.last, 13);
  EXPECT_EQ(part.storage, whole.storage);
  EXPECT_EQ(Root(data)[2].Tensor("t").type, ElementType::kF16);
  EXPECT_EQ(data.storages.size(), 2u);
}

TEST(Pickle, TensorsThatDoNotFitAreRefused) {
  const std::int64_t huge = INT64_MAX;
  const struct {
    PickleText text;
    const char* part;
  } cases[] = {
      {PickleText().Tensor("0", 11, 0, {3, 4}, {4, 1}), "reaches element 11 of storage \"0\""},
      {PickleText().Tensor("0", 12, 1, {3, 4}, {4, 1}), "reaches element 12"},
      {PickleText().Tensor("0", 4, 0, {2, 2}, {-1, 1}), "expected a number from 0"},
      {PickleText().Tensor("0", 4, 0, {-2, 2}, {2, 1}), "expected a number from 0"},
      {PickleText().Tensor("0", 4, 0, {2}, {huge}), "reaches element"},
      {PickleText().Tensor("0", 4, 0, {3}, {huge}), "the strides of a tensor overflow"},
      {PickleText().Tensor("0", 4, 0, {huge, huge}, {0, 0}), "more than 2^63 bytes"},
      {PickleText().Tensor("0", 4, 0, {2}, {2, 1}), "a tensor of shape [2] with strides [2, 1]"},
      {PickleText().Tensor("0", 4, static_cast<std::size_t>(huge), {2}, {1}), "overflow"},
      {PickleText().Storage("0", huge), "a storage of 9223372036854775807 elements"},
      {PickleText().Storage("0", 1, "QInt8Storage"),
       "a storage of the type \"torch.QInt8Storage\""},
      {PickleText().Op('(').Storage("0", 1).Storage("0", 2).Op('t'),
       "storage \"0\" has 8 bytes here and 4 before"},
      {PickleText().Raw("K\1Q"), "a persistent id that is the integer 1"},
  };
  for (const auto& c : cases) {
    const std::string message = ReadError(c.text.End());
    EXPECT_NE(message.find(c.part), std::string::npos) << c.part << "\n" << message;
    EXPECT_NE(message.find("p: data.pkl byte "), std::string::npos) << message;
  }
}

TEST(Pickle, OtherOpcodesAreRefusedWithOffsetAndOpcode) {
  const std::string good = PickleText().Op('N').End();
  EXPECT_NE(ReadError("N.").find("data.pkl byte 0: opcode 0x4e 'N': a pickle begins with"),
            std::string::npos);
  for (const int version : {0, 1, 6}) {
    EXPECT_NE(ReadError(PickleText(version).Op('N').End()).find("only 2 to 5"), std::string::npos);
  }
  for (int op = 0; op < 256; ++op) {
    const bool known =
        std::string("(.012GJKMNQRTUXabcdehjlqrstu)]}BC").find(static_cast<char>(op)) !=
            std::string::npos ||
        (op >= 0x80 && op <= 0x96 && (op < 0x82 || op > 0x84));
    if (known) continue;
    const std::string message = ReadError(PickleText().Raw("N0").Op(static_cast<char>(op)).End());
    EXPECT_NE(message.find("data.pkl byte 4: opcode 0x"), std::string::npos) << message;
    EXPECT_NE(message.find("is not one that torch.save writes"), std::string::npos) << op;
  }
}

TEST(Pickle, ProgramsThatDoNotAddUpAreRefused) {
  const struct {
    std::string program;
    const char* part;
  } cases[] = {
      {"", "the end with 0 values"},
      {"NN", "the end with 2 values"},
      {"(N", "the end with 1 values and 1 marks"},
      {"a", "the stack is empty"},
      {"](a", "the stack is empty"},
      {"t", "there is no mark"},
      {"h\5", "nothing was remembered as 5"},
      {"Nr\xff\xff\xff\xff", "remembers 4294967295"},
      {"}(Nu", "a key without a value"},
      {"(Nd", "a key without a value"},
      {"]NNs", "sets keys of a list"},
      {"}Na", "appends to a dict"},
      {"NNa", "no list, set or dict"},
      {"N)R", "found None, expected a class"},
      {"cm\nn\nNR", "the arguments are None, expected a tuple"},
      {"K\1K\1\x93", "the name of a class must be a string"},
      {"NNb", "gives a state to None"},
      {"X\xff\xff\xff\xff", "4294967295 bytes of text, at most"},
      {"X\xff\xff\1\1", "bytes are expected"},
      {"\x8e" + LittleEndian(1ULL << 60, 8), "1152921504606846976 bytes of text"},
      {"\x95" + LittleEndian(1ULL << 60, 8) + "N", "a frame that is longer than the file"},
      {"c" + std::string(2000, 'm'), "a line is longer than"},
  };
  for (const auto& c : cases) {
    const std::string message = ReadError(PickleText().Raw(c.program).End());
    EXPECT_NE(message.find(c.part), std::string::npos) << c.part << "\n" << message;
  }
}

TEST(Pickle, MemoryIsBounded) {
  // Empty lists, and items put again and again into one list by way of the memo.
  EXPECT_NE(ReadError(PickleText().Raw(std::string(kMaxPickleValues, ']')).End())
                .find("more than 2000000 values"),
            std::string::npos);
  std::string doubling = std::string("]q\0(", 4);
  doubling += std::string(100'000, 'N') + "e";
  for (int i = 0; i < 200; ++i)
    doubling += "c__builtin__\nset\nh" + std::string(1, '\0') + "\x85R0";
  EXPECT_NE(ReadError(PickleText().Raw(doubling).End()).find("more than 16000000 items"),
            std::string::npos);
  // Depth costs nothing.
  const PickleData deep =
      Read(PickleText().Raw(std::string(100'000, ']') + std::string(99'999, 'a')));
  EXPECT_EQ(Root(deep).size(), 1u);
}

}  // namespace
}  // namespace ullage::files
