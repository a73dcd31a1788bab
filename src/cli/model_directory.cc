#include "cli/model_directory.h"

#include <torch/nn/module.h>

#include <unordered_set>

#include "cli/output_directory.h"
#include "kernels/cast.h"

namespace ullage::cli {
namespace {

// Of the tokenizer, and of a language model's chats and ways to write.
constexpr const char* kCompanions[] = {"tokenizer.json",      "tokenizer_config.json",
                                       "vocab.txt",           "special_tokens_map.json",
                                       "tokenizer.model",     "vocab.json",
                                       "merges.txt",          "added_tokens.json",
                                       "chat_template.jinja", "generation_config.json"};
constexpr std::int64_t kMaxCompanionBytes = 256 << 20;

}  // namespace

std::vector<NamedShape> DistinctParameters(models::Model& model) {
  std::vector<NamedShape> distinct;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : model.module().named_parameters(/*recurse=*/true)) {
    if (!seen.insert(item.value().unsafeGetTensorImpl()).second) continue;
    distinct.push_back({item.key(), item.value().sizes().vec()});
  }
  return distinct;
}

ModelDirectoryWriter::ModelDirectoryWriter(files::FileSystem& fs, const std::string& directory,
                                           models::Model& model,
                                           const std::vector<NamedShape>& parameters, DType dtype)
    : fs_(fs), directory_(directory), model_(model), dtype_(dtype) {
  std::vector<files::TensorDeclaration> tensors;
  for (const NamedShape& parameter : parameters) {
    tensors.push_back(
        {model.FileNames(parameter.name).front(), files::ToElementType(dtype), parameter.shape});
  }
  // transformers asks for the format.
  weights_ = std::make_unique<files::SafetensorsWriter>(
      fs, directory + "/model.safetensors", tensors,
      std::map<std::string, std::string>{{"format", "pt"}});
}

void ModelDirectoryWriter::Append(std::span<const float> values) {
  if (dtype_ == DType::kFloat32) {
    weights_->Append(values.data(), static_cast<std::int64_t>(values.size_bytes()));
    return;
  }
  const auto count = std::ssize(values);
  converted_.resize(values.size() * static_cast<std::size_t>(ElementBytes(dtype_)));
  kernels::Convert(DType::kFloat32, values.data(), dtype_, converted_.data(), count);
  weights_->Append(converted_.data(), std::ssize(converted_));
}

void ModelDirectoryWriter::Finish(const std::string& model_directory) {
  weights_->Finish();
  WriteWhole(fs_, directory_ + "/config.json", model_.ExportConfig(HuggingFaceName(dtype_)));
  for (const std::string name : kCompanions) {
    const std::string from = model_directory + "/" + name;
    const auto status = fs_.Stat(from);
    if (status && status->is_regular) {
      CopySmall(fs_, from, directory_ + "/" + name, kMaxCompanionBytes);
    }
  }
  fs_.SyncDirectory(directory_);
}

const char* HuggingFaceName(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
  }
  return "?";
}

}  // namespace ullage::cli
