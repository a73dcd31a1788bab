// A Hugging Face model directory, written as a stream: weights, config.json and what belongs to the
// tokenizer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "files/safetensors_writer.h"
#include "models/model.h"

namespace ullage::cli {

struct NamedShape {
  std::string name;
  std::vector<std::int64_t> shape;
};

// Every distinct parameter, in registration order and under its first name.
std::vector<NamedShape> DistinctParameters(models::Model& model);

class ModelDirectoryWriter {
 public:
  // Begins "model.safetensors" in `directory`, which must exist. Holds references to all but the
  // parameters.
  ModelDirectoryWriter(files::FileSystem& fs, const std::string& directory, models::Model& model,
                       const std::vector<NamedShape>& parameters, DType dtype);

  // The next elements of the parameters' values, in the order of the list.
  void Append(std::span<const float> values);

  // Weights and config.json appear; files of the tokenizer, the chat template and the generation
  // settings are copied from `model_directory` where it has them.
  void Finish(const std::string& model_directory);

 private:
  files::FileSystem& fs_;
  std::string directory_;
  models::Model& model_;
  DType dtype_;
  std::unique_ptr<files::SafetensorsWriter> weights_;
  std::vector<std::byte> converted_;
};

// "float32", "bfloat16", "float16", as a config.json says it.
const char* HuggingFaceName(DType dtype);

}  // namespace ullage::cli
