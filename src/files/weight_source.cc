#include "files/weight_source.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "files/deepspeed_checkpoint.h"
#include "files/json_handler.h"
#include "ullage/error.h"

namespace ullage::files {
namespace {

constexpr const char* kFetchAgain = "fetch the model again";

using OpenFile = std::unique_ptr<TensorFile> (*)(FileSystem&, const std::string&);

// What a folder may hold its weights in, best first: a single file, or an index and the files that
// it lists, whose names end like it.
struct Form {
  const char* single;
  const char* index;
  const char* ending;
  OpenFile open;
};

constexpr std::array<Form, 2> kForms = {{
    {"model.safetensors", "model.safetensors.index.json", ".safetensors", OpenSafetensors},
    {"pytorch_model.bin", "pytorch_model.bin.index.json", ".bin", OpenPickledWeights},
}};

// {"metadata": anything, "weight_map": {tensor: file, ...}}
class IndexHandler final : public JsonHandler {
 public:
  std::map<std::string, std::string> weight_map;
  bool found = false;

  bool key(std::string& name) override {
    if (depth_ == 1) {
      in_map_ = name == "weight_map";
      if (in_map_ && found) return Refuse("weight_map", "comes twice");
      found = found || in_map_;
    } else if (depth_ == 2 && in_map_) {
      tensor_ = name;
    }
    return true;
  }
  bool start_object(std::size_t) override {
    if (depth_ >= 2 && in_map_) return Refuse(Quoted(tensor_), "must be a file name");
    ++depth_;
    return true;
  }
  bool end_object() override { return Leave(); }
  bool start_array(std::size_t) override {
    if (depth_ == 0) return Refuse("the index", "must be an object");
    if (in_map_) return Refuse("weight_map", "holds a list; it maps tensors to file names");
    ++depth_;
    return true;
  }
  bool end_array() override { return Leave(); }
  bool string(std::string& value) override {
    if (depth_ != 2 || !in_map_) return Scalar("a string");
    if (!weight_map.emplace(tensor_, value).second) return Refuse(Quoted(tensor_), "comes twice");
    return true;
  }
  bool number_unsigned(std::uint64_t value) override { return Scalar(std::to_string(value)); }
  bool Scalar(const std::string& text) override {
    if (depth_ == 0) return Refuse("the index", "must be an object, not " + text);
    if (in_map_) return Refuse("weight_map", "holds " + text + "; it maps tensors to file names");
    return true;  // somewhere in the metadata, which nobody needs
  }

 private:
  bool Leave() {
    --depth_;
    if (depth_ <= 1) in_map_ = false;
    return true;
  }

  std::int64_t depth_ = 0;
  bool in_map_ = false;
  std::string tensor_;
};

std::map<std::string, std::string> ReadIndex(FileSystem& fs, const std::string& path,
                                             const char* ending) {
  const std::string text = fs.ReadText(path, SafetensorsFile::kMaxHeaderBytes);
  IndexHandler handler;
  if (!nlohmann::json::sax_parse(text, &handler)) {
    throw IoError(path + ": " + handler.Message(0), kFetchAgain);
  }
  if (!handler.found || handler.weight_map.empty()) {
    throw IoError(path + ": has no weight_map that lists tensors", kFetchAgain);
  }
  for (const auto& [tensor, file] : handler.weight_map) {
    // A plain name of the same directory: an index must not reach other files of the machine.
    const bool plain = !file.empty() && file.find('/') == std::string::npos &&
                       file.find('\0') == std::string::npos && file != "." && file != "..";
    if (!plain || !file.ends_with(ending)) {
      throw IoError(
          fmt::format("{}: tensor {} is said to be in {}, expected the name of a {} file "
                      "of the same folder",
                      path, JsonHandler::Quoted(tensor), JsonHandler::Quoted(file), ending),
          kFetchAgain);
    }
  }
  return std::move(handler.weight_map);
}

}  // namespace

// By the names of files: the format is no matter of this room (docs/checkpoint_format.md).
void RefuseOwnCheckpoint(FileSystem& fs, const std::string& directory) {
  const auto status = fs.Stat(directory);
  if (!status || !status->is_directory) return;
  const std::vector<std::string> names = fs.List(directory);
  const bool is_one = std::ranges::any_of(names, [&](const std::string& name) {
    return name == "manifest.json" ||
           (name.starts_with("step-") && fs.Stat(directory + "/" + name + "/manifest.json"));
  });
  if (!is_one) return;
  throw IoError(directory + ": holds a checkpoint of a training, no model",
                "go on from it: --resume-from that folder, with --model as the run had it; or make "
                "a model of it: ullage export --checkpoint");
}

void WeightFiles::AddFile(std::unique_ptr<TensorFile> file) {
  files_.push_back(std::move(file));
  const std::size_t index = files_.size() - 1;
  if (std::string note = files_[index]->Note(); !note.empty()) notes_.push_back(std::move(note));
  for (const TensorInfo& tensor : files_[index]->tensors()) {
    const auto [place, added] = places_.emplace(tensor.name, Place{index, &tensor});
    if (!added) {
      throw IoError(fmt::format("tensor {} is in {} and in {}", JsonHandler::Quoted(tensor.name),
                                files_[place->second.file]->path(), files_[index]->path()),
                    kFetchAgain);
    }
    names_.push_back(tensor.name);
  }
}

// Opens the files that `index` lists and checks that they hold what it says and nothing else.
void WeightFiles::AddFilesOf(FileSystem& fs, const std::string& index, const char* ending,
                             OpenFile open) {
  const auto weight_map = ReadIndex(fs, index, ending);
  std::set<std::string> files;
  for (const auto& [tensor, file] : weight_map) files.insert(file);
  for (const std::string& file : files) AddFile(open(fs, directory_ + "/" + file));
  for (const auto& [tensor, file] : weight_map) {
    const auto place = places_.find(tensor);
    if (place == places_.end() || FileOf(tensor) != directory_ + "/" + file) {
      throw IoError(fmt::format("{}: tensor {} is not there, but {} lists it",
                                directory_ + "/" + file, JsonHandler::Quoted(tensor), index),
                    kFetchAgain);
    }
  }
  for (const std::string& tensor : names_) {
    if (!weight_map.contains(tensor)) {
      throw IoError(fmt::format("{}: holds tensor {}, which {} does not list", FileOf(tensor),
                                JsonHandler::Quoted(tensor), index),
                    kFetchAgain);
    }
  }
}

WeightFiles WeightFiles::Open(FileSystem& fs, const std::string& directory) {
  WeightFiles result;
  result.directory_ = directory;
  if (const auto status = fs.Stat(directory); !status || !status->is_directory) {
    throw IoError(directory + ": is not a folder", "name the folder of a Hugging Face model");
  }
  for (const Form& form : kForms) {
    if (const std::string file = directory + "/" + form.single; fs.Stat(file)) {
      result.AddFile(form.open(fs, file));
    } else if (const std::string index = directory + "/" + form.index; fs.Stat(index)) {
      result.AddFilesOf(fs, index, form.ending, form.open);
    } else {
      continue;
    }
    std::sort(result.names_.begin(), result.names_.end());
    return result;
  }
  RefuseOwnCheckpoint(fs, directory);
  if (DeepSpeedCheckpoint::IsOne(fs, directory)) {
    result.AddFile(OpenDeepSpeedWeights(fs, directory));
    std::sort(result.names_.begin(), result.names_.end());
    return result;
  }
  throw IoError(fmt::format("{}: holds neither {} nor {} nor an index of several of them, nor a "
                            "checkpoint of DeepSpeed",
                            directory, kForms[0].single, kForms[1].single),
                "name the folder of a Hugging Face model with its weights");
}

const TensorInfo* WeightFiles::Find(const std::string& name) const {
  const auto place = places_.find(name);
  return place == places_.end() ? nullptr : place->second.tensor;
}

const WeightFiles::Place& WeightFiles::PlaceOf(const std::string& name) const {
  const auto place = places_.find(name);
  if (place == places_.end()) {
    throw IoError(
        fmt::format("{}: has no tensor \"{}\" among its {}", directory_, name, names_.size()),
        "check that the folder holds this kind of model");
  }
  return place->second;
}

const TensorInfo& WeightFiles::Get(const std::string& name) const {
  return *PlaceOf(name).tensor;
}

const std::string& WeightFiles::FileOf(const std::string& name) const {
  return files_[PlaceOf(name).file]->path();
}

void WeightFiles::Read(const std::string& name, std::int64_t first, std::int64_t count,
                       void* out) const {
  const Place& place = PlaceOf(name);
  files_[place.file]->Read(*place.tensor, first, count, out);
}

}  // namespace ullage::files
