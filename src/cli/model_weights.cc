#include "cli/model_weights.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <regex>
#include <unordered_set>

#include "kernels/cast.h"
#include "ullage/error.h"

namespace ullage::cli {
namespace {

using files::ElementType;
using files::TensorInfo;

class Patterns {
 public:
  Patterns(const std::vector<std::string>& patterns, const std::string& origin) {
    for (const std::string& pattern : patterns) {
      try {
        patterns_.emplace_back(pattern);
      } catch (const std::regex_error& error) {
        throw ConfigError(
            fmt::format("{} '{}': not a regular expression: {}", origin, pattern, error.what()),
            R"(write a dot as \. and a bracket as \[)");
      }
    }
  }
  bool Match(const std::string& name) const {
    return std::ranges::any_of(patterns_,
                               [&](const std::regex& p) { return std::regex_search(name, p); });
  }

 private:
  std::vector<std::regex> patterns_;
};

// Whether values of the type can become fp32 weights.
bool IsFloating(ElementType type) {
  return type == ElementType::kF64 || type == ElementType::kF32 || type == ElementType::kF16 ||
         type == ElementType::kBF16;
}

std::optional<DType> AsDType(ElementType type) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    if (files::ToElementType(dtype) == type) return dtype;
  }
  return std::nullopt;
}

std::string Join(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 20;
  std::string text = fmt::format(
      "{}",
      fmt::join(names.begin(),
                names.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, names.size())), ", "));
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

}  // namespace

ModelWeights::ModelWeights(files::WeightFiles files, models::Model& model,
                           const std::vector<std::string>& allow_missing, std::uint64_t seed)
    : files_(std::move(files)), model_(model), seed_(seed) {
  const Patterns allowed(allow_missing, "--allow-missing");
  std::vector<std::string> missing;
  std::vector<std::string> problems;
  std::vector<std::string> used;
  for (const auto& item : model.module().named_parameters(/*recurse=*/true)) {
    const std::string& name = item.key();
    const std::vector<std::int64_t> shape = item.value().sizes().vec();
    const std::vector<std::string> names = model.FileNames(name);
    const auto found = std::ranges::find_if(
        names, [&](const std::string& candidate) { return files_.Find(candidate) != nullptr; });
    if (found == names.end()) {
      (allowed.Match(name) ? new_parameters_ : missing).push_back(name);
      continue;
    }
    const TensorInfo& tensor = files_.Get(*found);
    used.push_back(*found);
    // torch.save writes tied weights under every name.
    std::ranges::copy_if(
        std::ranges::subrange(found + 1, names.end()), std::back_inserter(unneeded_),
        [&](const std::string& candidate) { return files_.Find(candidate) != nullptr; });
    if (tensor.shape != shape) {
      if (allowed.Match(name)) {
        new_parameters_.push_back(name);
        continue;
      }
      problems.push_back(fmt::format("{}: the model has shape {}, {} has {}", name,
                                     files::FormatShape(shape), files_.FileOf(*found),
                                     files::FormatShape(tensor.shape)));
    } else if (!IsFloating(tensor.type)) {
      problems.push_back(
          fmt::format("{}: {} has type {}", name, files_.FileOf(*found), files::Name(tensor.type)));
    }
    file_name_[name] = *found;
  }

  const Patterns head(model.head_patterns(), "head");
  if (std::ranges::all_of(missing, [&](const std::string& name) { return head.Match(name); })) {
    new_parameters_.insert(new_parameters_.end(), missing.begin(), missing.end());
    missing.clear();
  }
  if (!missing.empty()) problems.push_back("missing: " + Join(missing));
  CheckUnused(used, problems);
  if (!problems.empty()) {
    throw ConfigError(
        fmt::format("{}: its weights do not fit the model:\n  {}", files_.directory(),
                    fmt::join(problems, "\n  ")),
        "name the directory of a matching model; --allow-missing PATTERN starts the parameters "
        "whose names match anew (for a classifier with other labels: --allow-missing classifier)");
  }
}

void ModelWeights::CheckUnused(const std::vector<std::string>& used,
                               std::vector<std::string>& problems) {
  const Patterns unneeded(model_.unneeded_tensor_patterns(), "unneeded");
  std::unordered_set<std::string> known(used.begin(), used.end());
  std::erase_if(unneeded_, [&](const std::string& name) { return !known.insert(name).second; });
  std::vector<std::string> extra;
  for (const std::string& name : files_.names()) {
    if (!known.contains(name)) (unneeded.Match(name) ? unneeded_ : extra).push_back(name);
  }
  if (!extra.empty()) problems.push_back("not in the model: " + Join(extra));
}

void ModelWeights::Read(const std::string& name, std::span<const std::int64_t> shape,
                        std::int64_t first, std::span<float> values) {
  const auto found = file_name_.find(name);
  if (found == file_name_.end()) {
    ReadInitial(name, shape, first, values);
  } else {
    ReadFromFile(files_.Get(found->second), first, values);
  }
}

void ModelWeights::ReadFromFile(const TensorInfo& tensor, std::int64_t first,
                                std::span<float> values) {
  const auto count = static_cast<std::int64_t>(values.size());
  if (tensor.type == ElementType::kF32) {
    files_.Read(tensor.name, first, count, values.data());
    return;
  }
  raw_.resize(static_cast<std::size_t>(count * files::ElementBytes(tensor.type)));
  files_.Read(tensor.name, first, count, raw_.data());
  if (const auto dtype = AsDType(tensor.type)) {
    kernels::Convert(*dtype, raw_.data(), DType::kFloat32, values.data(), count);
    return;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    double wide = 0;
    std::memcpy(&wide, raw_.data() + i * sizeof(wide), sizeof(wide));
    values[i] = static_cast<float>(wide);
  }
}

void ModelWeights::ReadInitial(const std::string& name, std::span<const std::int64_t> shape,
                               std::int64_t first, std::span<float> values) {
  if (name != initial_name_) {
    initial_ = at::empty(at::IntArrayRef(shape.data(), shape.size()), at::kFloat);
    model_.InitialValue(name, seed_, initial_);
    initial_name_ = name;
  }
  std::memcpy(values.data(), initial_.const_data_ptr<float>() + first, values.size_bytes());
  if (first + std::ssize(values) == initial_.numel()) {
    initial_ = at::Tensor();
    initial_name_.clear();
  }
}

std::vector<std::string> ModelWeights::Lines() const {
  std::vector<std::string> lines = files_.notes();
  if (!new_parameters_.empty()) {
    lines.push_back(fmt::format("new weights for {} (not in {}), from seed {}",
                                Join(new_parameters_), files_.directory(), seed_));
  }
  if (!unneeded_.empty()) {
    lines.push_back(fmt::format("of no use here, ignored: {}", Join(unneeded_)));
  }
  return lines;
}

}  // namespace ullage::cli
