#include "files/token_file.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "ullage/error.h"

namespace ullage::files {
namespace {

constexpr const char* kHint = "make the file again with ullage-prepare";

[[noreturn]] void Fail(const SafetensorsFile& file, const std::string& what) {
  throw IoError(file.path() + ": " + what, kHint);
}

const std::string& Metadata(const SafetensorsFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) {
    Fail(file, fmt::format("has no \"{}\" in its metadata; this is no token file", key));
  }
  return found->second;
}

std::int64_t Number(const SafetensorsFile& file, const std::string& key, std::int64_t least) {
  const std::string& text = Metadata(file, key);
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || rest != end || value < least ||
      value > std::numeric_limits<std::int32_t>::max()) {
    Fail(file, fmt::format("metadata {} is \"{}\", expected a number from {} to 2147483647", key,
                           text, least));
  }
  return value;
}

std::vector<std::string> LabelNames(const SafetensorsFile& file, std::int64_t num_labels) {
  const auto list = nlohmann::json::parse(Metadata(file, "label_names"), nullptr, false);
  const auto is_string = [](const nlohmann::json& item) { return item.is_string(); };
  if (!list.is_array() || !std::all_of(list.begin(), list.end(), is_string) ||
      (!list.empty() && static_cast<std::int64_t>(list.size()) != num_labels)) {
    Fail(file, fmt::format("metadata label_names must be a JSON list of {} strings, or empty",
                           num_labels));
  }
  return list.get<std::vector<std::string>>();
}

// The tensor, which must have this type and one dimension.
const TensorInfo& Vector(const SafetensorsFile& file, const std::string& name, ElementType type) {
  const TensorInfo* tensor = file.Find(name);
  if (tensor == nullptr) Fail(file, "has no tensor \"" + name + "\"; this is no token file");
  if (tensor->type != type || tensor->shape.size() != 1) {
    Fail(file, fmt::format("tensor \"{}\" is {} {}, expected {} with one dimension", name,
                           Name(tensor->type), FormatShape(tensor->shape), Name(type)));
  }
  return *tensor;
}

std::vector<std::int64_t> ReadVector(const SafetensorsFile& file, const TensorInfo& tensor) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(tensor.numel));
  file.Read(tensor, 0, tensor.numel, values.data());
  return values;
}

TokenTask ReadTask(const SafetensorsFile& file) {
  const auto found = file.metadata().find("task");
  if (found == file.metadata().end()) return TokenTask::kClassification;
  for (const TokenTask task : {TokenTask::kCausal, TokenTask::kInstruct}) {
    if (found->second == Name(task)) return task;
  }
  Fail(file, fmt::format("metadata task is \"{}\", expected \"causal\", \"instruct\" or none",
                         found->second));
}

}  // namespace

const char* Name(TokenTask task) {
  switch (task) {
    case TokenTask::kClassification:
      return "classification";
    case TokenTask::kCausal:
      return "causal";
    case TokenTask::kInstruct:
      return "instruct";
  }
  return "?";
}

TokenFile TokenFile::Open(FileSystem& fs, const std::string& path) {
  TokenFile result(SafetensorsFile::Open(fs, path));
  const SafetensorsFile& file = result.file_;
  if (Metadata(file, "format") != "ullage-tokens") Fail(file, "is no token file");
  if (Metadata(file, "version") != "1") {
    throw UnsupportedError(fmt::format("{}: is a token file of version {}, this program reads 1",
                                       path, Metadata(file, "version")),
                           "make the file again with the ullage-prepare of this version");
  }
  TokenFileInfo& info = result.info_;
  info.task = ReadTask(file);
  info.tokenizer = Metadata(file, "tokenizer");
  info.tokenizer_sha256 = Metadata(file, "tokenizer_sha256");
  info.pad_token_id = Number(file, "pad_token_id", 0);
  const TensorInfo& input_ids = Vector(file, "input_ids", ElementType::kI32);
  const TensorInfo& offsets = Vector(file, "offsets", ElementType::kI64);
  if (info.task == TokenTask::kClassification) {
    info.num_labels = Number(file, "num_labels", 1);
    info.label_names = LabelNames(file, info.num_labels);
    const TensorInfo& labels = Vector(file, "labels", ElementType::kI64);
    if (offsets.numel != labels.numel + 1) {
      Fail(file, fmt::format("has {} offsets for {} labels, expected one more than labels",
                             offsets.numel, labels.numel));
    }
    result.labels_ = ReadVector(file, labels);
  } else if (info.task == TokenTask::kInstruct) {
    const TensorInfo& labels = Vector(file, "labels", ElementType::kI32);
    if (labels.numel != input_ids.numel) {
      Fail(file, fmt::format("has {} labels for {} tokens, expected one for each", labels.numel,
                             input_ids.numel));
    }
  } else if (file.Find("labels") != nullptr) {
    Fail(file, "has a tensor \"labels\"; in a causal file the tokens are the labels");
  }
  if (offsets.numel == 0) Fail(file, "has no offsets, expected at least one");
  result.offsets_ = ReadVector(file, offsets);
  result.CheckOffsets(input_ids.numel);
  result.CheckRecordLabels();
  return result;
}

void TokenFile::CheckOffsets(std::int64_t tokens_in_file) const {
  if (offsets_.front() != 0) {
    Fail(file_, fmt::format("record 0 begins at token {}, expected 0", offsets_.front()));
  }
  for (std::int64_t record = 0; record < records(); ++record) {
    const std::int64_t begin = Begin(record);
    const std::int64_t end = Begin(record + 1);
    if (end <= begin || end > tokens_in_file) {
      Fail(file_, fmt::format("record {} runs from token {} to {}, expected at least one token and "
                              "an end of at most {}",
                              record, begin, end, tokens_in_file));
    }
  }
  if (tokens() != tokens_in_file) {
    Fail(file_, fmt::format("the last record ends at token {} of {}", tokens(), tokens_in_file));
  }
}

void TokenFile::CheckRecordLabels() const {
  for (std::int64_t record = 0; record < std::ssize(labels_); ++record) {
    const std::int64_t label = Label(record);
    if (label != kIgnoredLabel && (label < 0 || label >= info_.num_labels)) {
      Fail(file_, fmt::format("record {} has label {}, expected 0 to {} or {}", record, label,
                              info_.num_labels - 1, kIgnoredLabel));
    }
  }
}

void TokenFile::ReadTokens(std::int64_t first, std::int64_t count, std::int32_t* out) const {
  file_.Read("input_ids", first, count, out);
}

void TokenFile::ReadTokenLabels(std::int64_t first, std::int64_t count, std::int32_t* out) const {
  file_.Read("labels", first, count, out);
}

std::int64_t TokenFile::RecordOfToken(std::int64_t token) const {
  return std::upper_bound(offsets_.begin(), offsets_.end(), token) - offsets_.begin() - 1;
}

}  // namespace ullage::files
