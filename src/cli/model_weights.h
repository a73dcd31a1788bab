// The weights of a Hugging Face directory under the names of a model: checked as a whole before
// anything is read, then read range by range.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "files/weight_source.h"
#include "models/model.h"
#include "ullage/engine.h"

namespace ullage::cli {

class ModelWeights final : public WeightSource {
 public:
  // Pairs every parameter of `model` with a tensor of `files`. `allow_missing` are regular
  // expressions, searched in parameter names: what matches may be absent or of another shape and
  // then has its initial value for `seed`. A head that the directory lacks as a whole needs no such
  // permission. Throws ConfigError that lists every missing tensor, every one too many, and both
  // shapes where they differ. `model` must outlive it.
  ModelWeights(files::WeightFiles files, models::Model& model,
               const std::vector<std::string>& allow_missing, std::uint64_t seed);

  void Read(const std::string& name, std::span<const std::int64_t> shape, std::int64_t first,
            std::span<float> values) override;

  const std::vector<std::string>& new_parameters() const { return new_parameters_; }
  // For the start of a run: which weights are new, which tensors are of no use.
  std::vector<std::string> Lines() const;

 private:
  void CheckUnused(const std::vector<std::string>& used, std::vector<std::string>& problems);
  void ReadFromFile(const files::TensorInfo& tensor, std::int64_t first, std::span<float> values);
  void ReadInitial(const std::string& name, std::span<const std::int64_t> shape, std::int64_t first,
                   std::span<float> values);

  files::WeightFiles files_;
  models::Model& model_;
  std::uint64_t seed_;
  std::unordered_map<std::string, std::string> file_name_;  // of the parameters that are there
  std::vector<std::string> new_parameters_;
  std::vector<std::string> unneeded_;
  std::vector<std::byte> raw_;
  // The last new value made, because ranges of one parameter are asked for one after the other.
  std::string initial_name_;
  at::Tensor initial_;
};

}  // namespace ullage::cli
