// manifest.json: text to a checked Manifest and back.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>

#include "checkpoint/block_checksums.h"
#include "checkpoint/manifest.h"
#include "ullage/error.h"

namespace ullage::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "ullage-checkpoint";
// The end of the text: `,\n"checksum": "0123456789abcdef"\n}\n`.
constexpr std::string_view kBeforeChecksum = ",\n\"checksum\": \"";
constexpr std::string_view kAfterChecksum = "\"\n}\n";
constexpr std::size_t kHexDigits = 16;
constexpr std::size_t kEndBytes = kBeforeChecksum.size() + kHexDigits + kAfterChecksum.size();

constexpr int kMaxDepth = 6;
constexpr std::int64_t kMaxValues = 16 << 20;
constexpr std::int64_t kMaxCount = std::int64_t{1} << 40;  // of steps

std::string Hex(std::uint64_t value) {
  return fmt::format("{:016x}", value);
}

bool ParseHex(std::string_view text, std::uint64_t& value) {
  value = 0;
  for (const char c : text) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return false;
    value = value << 4 | static_cast<std::uint64_t>(digit);
  }
  return text.size() == kHexDigits;
}

std::string Compact(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::strict);
}

// One element of a list on each line.
std::string Lines(const Json& list) {
  std::string text = "[";
  for (std::size_t i = 0; i < list.size(); ++i) {
    text += (i == 0 ? "\n " : ",\n ") + Compact(list[i]);
  }
  return text + "]";
}

Json TensorJson(const Tensor& tensor) {
  Json json = {{"name", tensor.name},
               {"role", Name(tensor.role)},
               {"dtype", files::Name(tensor.type)},
               {"shape", tensor.shape}};
  if (!tensor.aliases.empty()) json["aliases"] = tensor.aliases;
  Json slices = Json::array();
  for (const Slice& slice : tensor.slices) {
    slices.push_back({slice.file, slice.first, slice.numel});
  }
  json["slices"] = std::move(slices);
  return json;
}

Json FileJson(const File& file) {
  std::string checksums;
  for (const std::uint64_t checksum : file.checksums) checksums += Hex(checksum);
  return {{"name", file.name}, {"bytes", file.bytes}, {"checksums", std::move(checksums)}};
}

class Reader {
 public:
  Reader(const std::string& path, std::string_view text) : path_(path), text_(text) {}

  Manifest Read() {
    CheckEnd();
    Parse();
    Manifest manifest;
    if (String(json_, "format") != kFormat) Fail("format is not \"ullage-checkpoint\"");
    const std::int64_t version = Integer(json_, "version", 1, kMaxCount);
    if (version > kFormatVersion) {
      throw UnsupportedError(fmt::format("{}: has version {} of the format, this program reads {} "
                                         "and older",
                                         path_, version, kFormatVersion),
                             "load it with the version of ullage that wrote it, or a newer one");
    }
    manifest.written_by = String(json_, "written_by");
    manifest.applied_steps = Integer(json_, "applied_steps", 0, kMaxCount);
    manifest.skipped_steps = Integer(json_, "skipped_steps", 0, kMaxCount);
    manifest.seed = Seed();
    manifest.lr = Number(json_, "lr");
    manifest.loss_scale = ReadLossScale();
    manifest.optimizer = String(json_, "optimizer");
    for (const Json& moment : List(json_, "moments")) {
      manifest.moments.push_back(Text(moment, "moments"));
      const std::string& name = manifest.moments.back();
      if (name != "exp_avg" && name != "exp_avg_sq" && name != "momentum_buffer") {
        Fail(fmt::format("moments: {} is not known", Quoted(name)));
      }
    }
    if (manifest.moments.size() > 2) Fail("moments: at most 2 are known");
    manifest.world_size = Integer(json_, "world_size", 1, 1 << 20);
    manifest.stage = Integer(json_, "stage", 0, 3);
    manifest.precision = String(json_, "precision");
    const Json& settings = Member(json_, "settings");
    if (!settings.is_object()) Fail("settings is no object");
    for (const auto& [key, value] : settings.items()) {
      manifest.settings.emplace_back(key, Text(value, "settings"));
    }
    manifest.client_state = String(json_, "client_state");
    ReadFiles(manifest);
    ReadTensors(manifest);
    return manifest;
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    throw IoError(path_ + ": " + what,
                  "the checkpoint is damaged: resume from an earlier one (--resume-from DIR)");
  }

  // Short, without control characters.
  static std::string Quoted(const std::string& text) {
    constexpr std::size_t kLongest = 200;
    std::string shown = text.substr(0, kLongest);
    for (char& c : shown) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    }
    return '"' + shown + '"';
  }

  void CheckEnd() const {
    std::uint64_t told = 0;
    const bool has_end = text_.size() > kEndBytes && text_.ends_with(kAfterChecksum) &&
                         text_.substr(text_.size() - kEndBytes).starts_with(kBeforeChecksum);
    if (!has_end ||
        !ParseHex(text_.substr(text_.size() - kEndBytes + kBeforeChecksum.size(), kHexDigits),
                  told)) {
      Fail(fmt::format("its {} bytes do not end in the line of its checksum", text_.size()));
    }
    const auto bytes = static_cast<std::int64_t>(text_.size() - kEndBytes);
    const std::uint64_t found = Checksum(text_.data(), bytes);
    if (found != told) {
      Fail(fmt::format("bytes 0 to {} have the checksum {}, the last line says {}", bytes - 1,
                       Hex(found), Hex(told)));
    }
  }

  void Parse() {
    std::int64_t values = 0;
    try {
      json_ = Json::parse(text_, [&](int depth, Json::parse_event_t, Json&) {
        if (depth > kMaxDepth) throw TooMuch{};
        if (++values > kMaxValues) throw TooMuch{};
        return true;
      });
    } catch (const TooMuch&) {
      Fail(fmt::format("is nested deeper than {} or has more than {} values", kMaxDepth,
                       kMaxValues));
    } catch (const Json::exception& error) {
      Fail(error.what());
    }
    if (!json_.is_object()) Fail("is no JSON object");
  }

  const Json& Member(const Json& object, const char* key) const {
    const auto found = object.find(key);
    if (found == object.end()) Fail(fmt::format("has no {}", key));
    return *found;
  }
  std::string Text(const Json& value, const char* key) const {
    if (!value.is_string()) Fail(fmt::format("{}: a text is expected", key));
    return value.get<std::string>();
  }
  std::string String(const Json& object, const char* key) const {
    return Text(Member(object, key), key);
  }
  std::int64_t Whole(const Json& value, const char* key, std::int64_t least,
                     std::int64_t most) const {
    const bool fits = value.is_number_integer() &&
                      (!value.is_number_unsigned() ||
                       value.get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX));
    const std::int64_t number = fits ? value.get<std::int64_t>() : 0;
    if (!fits || number < least || number > most) {
      Fail(fmt::format("{}: a whole number from {} to {} is expected", key, least, most));
    }
    return number;
  }
  std::int64_t Integer(const Json& object, const char* key, std::int64_t least,
                       std::int64_t most) const {
    return Whole(Member(object, key), key, least, most);
  }
  double Number(const Json& object, const char* key) const {
    const Json& value = Member(object, key);
    if (!value.is_number()) Fail(fmt::format("{}: a number is expected", key));
    return value.get<double>();
  }
  const Json& List(const Json& object, const char* key) const {
    const Json& value = Member(object, key);
    if (!value.is_array()) Fail(fmt::format("{}: a list is expected", key));
    return value;
  }

  std::uint64_t Seed() const {
    const Json& value = Member(json_, "seed");
    if (!value.is_number_unsigned()) Fail("seed: a whole number from 0 is expected");
    return value.get<std::uint64_t>();
  }

  LossScale ReadLossScale() const {
    const Json& json = Member(json_, "loss_scale");
    if (!json.is_object()) Fail("loss_scale is no object");
    LossScale state;
    state.scale = Number(json, "scale");
    state.iteration = Integer(json, "iteration", 0, kMaxCount);
    state.last_overflow = Integer(json, "last_overflow", -1, kMaxCount);
    state.hysteresis_left = Integer(json, "hysteresis_left", 1, 1 << 30);
    return state;
  }

  void ReadFiles(Manifest& manifest) const {
    std::unordered_set<std::string> names;
    for (const Json& json : List(json_, "files")) {
      if (!json.is_object()) Fail("files: an object is expected");
      File file;
      file.name = String(json, "name");
      // A name with a slash could lead anywhere.
      const bool is_plain = !file.name.empty() && file.name.front() != '.' &&
                            file.name.size() < 200 && std::ranges::all_of(file.name, [](char c) {
                              return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                                     (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
                            });
      if (!is_plain) Fail(fmt::format("files: {} is no plain file name", Quoted(file.name)));
      if (!names.insert(file.name).second) {
        Fail(fmt::format("files: {} comes twice", Quoted(file.name)));
      }
      file.bytes = Integer(json, "bytes", 8, INT64_MAX / 2);
      const std::string hex = String(json, "checksums");
      if (hex.size() / kHexDigits != static_cast<std::size_t>(BlockCount(file.bytes)) ||
          hex.size() % kHexDigits != 0) {
        Fail(
            fmt::format("files: {} has {} bytes, which are {} blocks, but {} hexadecimal digits of "
                        "checksums",
                        file.name, file.bytes, BlockCount(file.bytes), hex.size()));
      }
      for (std::size_t i = 0; i < hex.size(); i += kHexDigits) {
        std::uint64_t checksum = 0;
        if (!ParseHex(std::string_view(hex).substr(i, kHexDigits), checksum)) {
          Fail(fmt::format("files: the checksums of {} are not hexadecimal", file.name));
        }
        file.checksums.push_back(checksum);
      }
      manifest.files.push_back(std::move(file));
    }
  }

  void ReadTensors(Manifest& manifest) const {
    std::unordered_set<std::string> names;
    const auto take_name = [&](const std::string& name) {
      if (!names.insert(name).second) Fail(fmt::format("tensors: {} comes twice", Quoted(name)));
    };
    for (const Json& json : List(json_, "tensors")) {
      if (!json.is_object()) Fail("tensors: an object is expected");
      Tensor tensor;
      tensor.name = String(json, "name");
      const std::string who = "tensors: " + Quoted(tensor.name);
      tensor.role = ReadRole(String(json, "role"), who);
      // A buffer may be called as a parameter of another part of the model.
      if (tensor.role != Role::kBuffer) take_name(tensor.name);
      if (json.contains("aliases")) {
        for (const Json& alias : List(json, "aliases")) {
          tensor.aliases.push_back(Text(alias, "aliases"));
          take_name(tensor.aliases.back());
        }
      }
      tensor.type = ReadType(String(json, "dtype"), who);
      for (const Json& size : List(json, "shape")) {
        tensor.shape.push_back(Whole(size, "shape", 0, INT64_MAX));
      }
      try {
        tensor.numel = files::CheckedNumel(tensor.shape, tensor.type);
      } catch (const ConfigError& error) {
        Fail(who + ": " + error.what());
      }
      ReadSlices(List(json, "slices"), who, manifest.files.size(), tensor);
      manifest.tensors.push_back(std::move(tensor));
    }
  }

  Role ReadRole(const std::string& name, const std::string& who) const {
    for (const Role role : {Role::kTrained, Role::kFrozen, Role::kBuffer}) {
      if (name == Name(role)) return role;
    }
    Fail(who + ": the role is not known");
  }

  files::ElementType ReadType(const std::string& name, const std::string& who) const {
    for (int i = 0; i <= static_cast<int>(files::ElementType::kC64); ++i) {
      const auto type = static_cast<files::ElementType>(i);
      if (name == files::Name(type)) return type;
    }
    Fail(who + ": the dtype is not known");
  }

  void ReadSlices(const Json& list, const std::string& who, std::size_t files,
                  Tensor& tensor) const {
    std::int64_t next = 0;
    for (const Json& json : list) {
      if (!json.is_array() || json.size() != 3) Fail(who + ": a slice is no list of 3 numbers");
      Slice slice;
      slice.file = Whole(json[0], "slices", 0, static_cast<std::int64_t>(files) - 1);
      slice.first = Whole(json[1], "slices", 0, INT64_MAX);
      slice.numel = Whole(json[2], "slices", 1, INT64_MAX);
      if (slice.first != next || slice.numel > tensor.numel - next) {
        Fail(
            fmt::format("{}: elements {} and {} more do not follow the slices before, which end "
                        "at {} of {}",
                        who, slice.first, slice.numel, next, tensor.numel));
      }
      next += slice.numel;
      tensor.slices.push_back(slice);
    }
    if (next != tensor.numel) {
      Fail(fmt::format("{}: its slices end at element {} of {}", who, next, tensor.numel));
    }
  }

  struct TooMuch {};

  const std::string& path_;
  const std::string_view text_;
  Json json_;
};

}  // namespace

std::string ToText(const Manifest& manifest) {
  Json settings = Json::object();
  for (const auto& [key, value] : manifest.settings) settings[key] = value;
  Json files = Json::array(), tensors = Json::array();
  for (const File& file : manifest.files) files.push_back(FileJson(file));
  for (const Tensor& tensor : manifest.tensors) tensors.push_back(TensorJson(tensor));
  const LossScale& scale = manifest.loss_scale;
  const Json head = {{"format", kFormat},
                     {"version", kFormatVersion},
                     {"written_by", manifest.written_by},
                     {"applied_steps", manifest.applied_steps},
                     {"skipped_steps", manifest.skipped_steps},
                     {"seed", manifest.seed},
                     {"lr", manifest.lr},
                     {"loss_scale",
                      {{"scale", scale.scale},
                       {"iteration", scale.iteration},
                       {"last_overflow", scale.last_overflow},
                       {"hysteresis_left", scale.hysteresis_left}}},
                     {"optimizer", manifest.optimizer},
                     {"moments", manifest.moments},
                     {"world_size", manifest.world_size},
                     {"stage", manifest.stage},
                     {"precision", manifest.precision},
                     {"settings", std::move(settings)},
                     {"client_state", manifest.client_state}};
  std::string text = "{";
  try {
    for (const auto& [key, value] : head.items()) {
      text += fmt::format("{}\n\"{}\": {}", text.size() == 1 ? "" : ",", key, Compact(value));
    }
    text += ",\n\"files\": " + Lines(files);
    text += ",\n\"tensors\": " + Lines(tensors);
  } catch (const Json::exception& error) {  // text that is not UTF-8
    throw ConfigError(fmt::format("a checkpoint's names and texts must be UTF-8: {}", error.what()),
                      "rename the parameter, or write the client state in UTF-8");
  }
  const std::uint64_t checksum = Checksum(text.data(), std::ssize(text));
  return text + std::string(kBeforeChecksum) + Hex(checksum) + std::string(kAfterChecksum);
}

Manifest ParseManifest(const std::string& path, std::string_view text) {
  return Reader(path, text).Read();
}

}  // namespace ullage::checkpoint
