#include "files/weight_source.h"

#include <vector>

#include "files/safetensors_writer.h"
#include "scratch.h"
#include "torch_zip.h"
#include "ullage/error.h"

namespace ullage::files {
namespace {

using testsupport::MessageOf;
using testsupport::Scratch;

// A file of one-dimensional fp32 tensors whose elements count up from `first`.
void WriteWeights(const std::string& path, const std::vector<std::string>& names, float first) {
  PosixFileSystem fs;
  std::vector<TensorDeclaration> tensors;
  for (const std::string& name : names) tensors.push_back({name, ElementType::kF32, {2}});
  SafetensorsWriter writer(fs, path, tensors);
  for (std::size_t i = 0; i < 2 * names.size(); ++i, ++first) writer.Append(&first, sizeof first);
  writer.Finish();
}

std::string OpenError(const std::string& directory) {
  PosixFileSystem fs;
  return MessageOf<IoError>([&] { WeightFiles::Open(fs, directory); });
}

TEST(WeightFiles, ReadsASingleFile) {
  Scratch scratch;
  PosixFileSystem fs;
  WriteWeights(scratch / "model.safetensors", {"b", "a"}, 1);
  const auto weights = WeightFiles::Open(fs, scratch.path());
  EXPECT_EQ(weights.names(), (std::vector<std::string>{"a", "b"}));
  float value = 0;
  weights.Read("a", 1, 1, &value);
  EXPECT_EQ(value, 4);
  EXPECT_EQ(weights.Find("c"), nullptr);
  EXPECT_THROW(weights.Get("c"), IoError);
}

TEST(WeightFiles, ReadsShardsThroughTheIndex) {
  Scratch scratch;
  PosixFileSystem fs;
  WriteWeights(scratch / "m-1.safetensors", {"a", "c"}, 1);
  WriteWeights(scratch / "m-2.safetensors", {"b"}, 10);
  scratch.Write("model.safetensors.index.json",
                R"({"metadata":{"total_size":24},"weight_map":{"a":"m-1.safetensors",)"
                R"("b":"m-2.safetensors","c":"m-1.safetensors"}})");
  const auto weights = WeightFiles::Open(fs, scratch.path());
  EXPECT_EQ(weights.names(), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(weights.FileOf("b"), scratch / "m-2.safetensors");
  EXPECT_EQ(weights.Get("c").shape, std::vector<std::int64_t>{2});
  float values[2] = {};
  weights.Read("b", 0, 2, values);
  EXPECT_EQ(values[1], 11);
  weights.Read("c", 1, 1, values);
  EXPECT_EQ(values[0], 4);
}

TEST(WeightFiles, AnIndexCannotReachOutOfItsFolder) {
  Scratch scratch;
  WriteWeights(scratch / "outside.safetensors", {"a"}, 1);
  std::filesystem::create_directory(scratch / "model");
  for (const std::string file : {"../outside.safetensors", "/etc/passwd", "", "..", ".",
                                 "sub/x.safetensors", "x.bin", "a\\u0000.safetensors"}) {
    scratch.Write("model/model.safetensors.index.json",
                  R"({"weight_map":{"a":")" + file + R"("}})");
    EXPECT_NE(OpenError(scratch / "model").find("of the same folder"), std::string::npos) << file;
  }
}

TEST(WeightFiles, AnInconsistentIndexNamesTensorAndFile) {
  Scratch scratch;
  WriteWeights(scratch / "m-1.safetensors", {"a", "extra"}, 1);
  WriteWeights(scratch / "m-2.safetensors", {"b"}, 1);
  WriteWeights(scratch / "m-3.safetensors", {"b"}, 1);
  const auto with = [&](const std::string& map) {
    scratch.Write("model.safetensors.index.json", map);
    return OpenError(scratch.path());
  };
  EXPECT_NE(with(R"({"weight_map":{"a":"m-1.safetensors"}})").find("\"extra\""), std::string::npos);
  EXPECT_NE(with(R"({"weight_map":{"b":"m-2.safetensors","c":"m-2.safetensors"}})")
                .find("tensor \"c\" is not there"),
            std::string::npos);
  EXPECT_NE(with(R"({"weight_map":{"b":"m-2.safetensors","c":"m-3.safetensors"}})")
                .find("tensor \"b\" is in"),
            std::string::npos);
  EXPECT_NE(with(R"({"weight_map":{"b":"m-9.safetensors"}})").find("m-9.safetensors: cannot open"),
            std::string::npos);
  EXPECT_NE(with(R"({"weight_map":{"b":"m-2.safetensors","b":"m-3.safetensors"}})").find("twice"),
            std::string::npos);
  EXPECT_NE(with(R"({"weight_map":{"b":["m-2.safetensors"]}})").find("weight_map holds a list"),
            std::string::npos);
  EXPECT_NE(with(R"({"weight_map":{"b":1}})").find("weight_map holds 1"), std::string::npos);
  EXPECT_NE(with(R"({"weight_map":[]})").find("weight_map holds a list"), std::string::npos);
  EXPECT_NE(with(R"({"metadata":{}})").find("no weight_map"), std::string::npos);
  EXPECT_NE(with("[]").find("must be an object"), std::string::npos);
  EXPECT_NE(with("{").find("byte "), std::string::npos);
  EXPECT_NE(with("{\"weight_map\":" + std::string(100'000, '[')).find("list"), std::string::npos);
}

// A state dict of one-dimensional fp32 tensors of two elements each.
void WritePickle(const Scratch& scratch, const std::string& file,
                 const std::vector<std::string>& names, float first) {
  std::string data;
  testsupport::PickleText dict;
  dict.Op('}').Op('(');
  for (std::size_t i = 0; i < names.size(); ++i) {
    dict.Text(names[i]).Tensor("0", 2 * names.size(), 2 * i, {2}, {1});
    for (int j = 0; j < 2; ++j, ++first) {
      data.append(reinterpret_cast<const char*>(&first), sizeof first);
    }
  }
  scratch.Write(file, testsupport::TorchZip(dict.Op('u').End(), {{"0", data}}));
}

TEST(WeightFiles, ReadsAPickledStateDict) {
  Scratch scratch;
  PosixFileSystem fs;
  WritePickle(scratch, "pytorch_model.bin", {"b", "a"}, 1);
  const auto weights = WeightFiles::Open(fs, scratch.path());
  EXPECT_EQ(weights.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(weights.FileOf("a"), scratch / "pytorch_model.bin");
  EXPECT_EQ(weights.Get("a").bytes, 8);
  float value = 0;
  weights.Read("a", 1, 1, &value);
  EXPECT_EQ(value, 4);
  EXPECT_THROW(weights.Read("a", 1, 2, &value), IoError);
}

TEST(WeightFiles, ReadsPickledShardsThroughTheIndex) {
  Scratch scratch;
  PosixFileSystem fs;
  WritePickle(scratch, "p-1.bin", {"a", "c"}, 1);
  WritePickle(scratch, "p-2.bin", {"b"}, 10);
  const auto index = [&](const std::string& map) {
    scratch.Write("pytorch_model.bin.index.json", R"({"weight_map":)" + map + "}");
  };
  index(R"({"a":"p-1.bin","b":"p-2.bin","c":"p-1.bin"})");
  const auto weights = WeightFiles::Open(fs, scratch.path());
  EXPECT_EQ(weights.names(), (std::vector<std::string>{"a", "b", "c"}));
  float value = 0;
  weights.Read("b", 1, 1, &value);
  EXPECT_EQ(value, 11);
  index(R"({"a":"p-1.bin","b":"p-2.bin"})");
  EXPECT_NE(OpenError(scratch.path()).find("\"c\""), std::string::npos);
  index(R"({"a":"p-1.safetensors"})");
  EXPECT_NE(OpenError(scratch.path()).find("the name of a .bin file of the same folder"),
            std::string::npos);
}

TEST(WeightFiles, SafetensorsAreTakenWhereBothAreThere) {
  Scratch scratch;
  PosixFileSystem fs;
  WritePickle(scratch, "pytorch_model.bin", {"pickled"}, 1);
  WriteWeights(scratch / "model.safetensors", {"safe"}, 1);
  EXPECT_EQ(WeightFiles::Open(fs, scratch.path()).names(), std::vector<std::string>{"safe"});
}

TEST(WeightFiles, APickleOfSomethingElseIsNamed) {
  Scratch scratch;
  const auto with = [&](const std::string& pickle) {
    scratch.Write("pytorch_model.bin", testsupport::TorchZip(pickle, {}));
    return OpenError(scratch.path());
  };
  testsupport::PickleText list, number, twice;
  EXPECT_NE(with(list.Op(']').End()).find("what was saved is a list of 0, expected a dict"),
            std::string::npos);
  number.Op('}').Text("epoch").Number(3).Op('s');
  EXPECT_NE(with(number.End()).find("tensor \"epoch\" is the integer 3, expected a tensor"),
            std::string::npos);
  twice.Op('}').Op('(');
  for (int i = 0; i < 2; ++i) twice.Text("w").Tensor("0", 0, 0, {0}, {1});
  scratch.Write("pytorch_model.bin", testsupport::TorchZip(twice.Op('u').End(), {{"0", ""}}));
  EXPECT_NE(OpenError(scratch.path()).find("\"w\" comes twice"), std::string::npos);
}

TEST(WeightFiles, ACheckpointOfATrainingIsNoModel) {
  Scratch scratch;
  PosixFileSystem fs;
  std::filesystem::create_directories(scratch / "run/step-00000003");
  scratch.Write("run/step-00000003/manifest.json", "{}");
  scratch.Write("run/latest", "step-00000003\n");
  for (const char* folder : {"run", "run/step-00000003"}) {
    const std::string message =
        MessageOf<IoError>([&] { WeightFiles::Open(fs, scratch / folder); });
    EXPECT_NE(message.find("holds a checkpoint of a training, no model"), std::string::npos)
        << message;
    EXPECT_NE(message.find("ullage export --checkpoint"), std::string::npos) << message;
  }
}

TEST(WeightFiles, AFolderWithoutWeightsSaysWhatWasExpected) {
  Scratch scratch;
  EXPECT_NE(OpenError(scratch.path()).find("neither model.safetensors nor pytorch_model.bin"),
            std::string::npos);
  EXPECT_NE(OpenError(scratch / "none").find("is not a folder"), std::string::npos);
}

}  // namespace
}  // namespace ullage::files
