#include "models/model.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "models/bert_model.h"
#include "models/json_fields.h"
#include "models/llama_config.h"
#include "models/llama_model.h"
#include "ullage/error.h"

namespace ullage::models {
namespace {

constexpr const char* kOffered =
    "model_type \"bert\", \"llama\", \"mistral\", \"qwen2\" and \"qwen3\" are offered";
constexpr std::size_t kMaxConfigBytes = 16 << 20;

nlohmann::json ReadConfigJson(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw IoError(fmt::format("{}: {}", path, std::strerror(errno)),
                  "a Hugging Face model directory holds a config.json");
  }
  std::string text(kMaxConfigBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (file.bad() || text.empty()) throw IoError(path + ": cannot be read or is empty", "");
  if (text.size() > kMaxConfigBytes) {
    throw ConfigError(fmt::format("{}: larger than {} bytes", path, kMaxConfigBytes),
                      "is this the config.json of a model?");
  }
  try {
    nlohmann::json json = nlohmann::json::parse(text);
    if (json.is_object()) return json;
  } catch (const nlohmann::json::parse_error& error) {
    throw ConfigError(fmt::format("{}: byte {}: {}", path, error.byte, error.what()),
                      "the file must be JSON");
  }
  throw ConfigError(path + ": not a JSON object", "is this the config.json of a model?");
}

}  // namespace

std::unique_ptr<Model> MakeModel(const std::string& config_json_path, int num_labels_override,
                                 c10::Device device) {
  nlohmann::json json = ReadConfigJson(config_json_path);
  const std::string type = JsonFields(json, config_json_path).String("model_type", "");
  if (type == "bert") {
    return MakeBertModel(std::move(json), config_json_path, num_labels_override, device);
  }
  if (IsLlamaType(type)) {
    if (num_labels_override > 0) {
      throw ConfigError(fmt::format("{}: {} classes for a language model of type \"{}\"",
                                    config_json_path, num_labels_override, type),
                        "a classifier needs a model of type \"bert\"");
    }
    return MakeLlamaModel(std::move(json), config_json_path, device);
  }
  if (type.empty()) {
    throw ConfigError(config_json_path + ": model_type is missing",
                      fmt::format("is this the config.json of a model? {}", kOffered));
  }
  throw UnsupportedError(
      fmt::format("{}: model_type: \"{}\" is not offered", config_json_path, type), kOffered);
}

}  // namespace ullage::models
