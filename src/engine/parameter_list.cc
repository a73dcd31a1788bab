#include "engine/parameter_list.h"

#include <fmt/format.h>
#include <torch/nn/module.h>

#include <unordered_map>

#include "torchx/interception.h"
#include "ullage/error.h"

namespace ullage {

ParameterList::ParameterList() : entries_(std::make_unique<Entries>()) {}
ParameterList::ParameterList(ParameterList&&) noexcept = default;
ParameterList& ParameterList::operator=(ParameterList&&) noexcept = default;
ParameterList::~ParameterList() = default;

void ParameterList::Add(std::string name, const at::Tensor& tensor) {
  entries_->list.emplace_back(std::move(name), tensor);
}

void ParameterList::AddBuffer(std::string name) {
  entries_->buffers.push_back(std::move(name));
}

void ParameterList::AddBuffer(const std::string& name, const at::Tensor& tensor) {
  AddBuffer(name);
  if (tensor.defined()) entries_->buffer_tensors.emplace_back(name, tensor);
}

ParameterList NamedParameters(const torch::nn::Module& module) {
  ParameterList list;
  for (const auto& item : module.named_parameters(/*recurse=*/true)) {
    list.Add(item.key(), item.value());
  }
  for (const auto& item : module.named_buffers(/*recurse=*/true)) {
    list.AddBuffer(item.key(), item.value());
  }
  return list;
}

namespace engine {

std::vector<DistinctParameter> FindDistinct(const ParameterList& list, DType weight_dtype) {
  std::vector<DistinctParameter> distinct;
  std::unordered_map<const c10::TensorImpl*, std::size_t> by_tensor;
  std::unordered_map<const c10::StorageImpl*, std::size_t> by_storage;
  for (const auto& [name, tensor] : list.entries().list) {
    if (!tensor.defined()) continue;
    if (const auto known = by_tensor.find(tensor.unsafeGetTensorImpl()); known != by_tensor.end()) {
      distinct[known->second].aliases.push_back(name);
      continue;
    }
    if (!tensor.is_floating_point() || !tensor.has_storage() || tensor.is_sparse()) {
      throw UnsupportedError(fmt::format("parameter '{}' is {} and cannot be managed", name,
                                         c10::toString(tensor.scalar_type())),
                             "register it as a buffer, or leave it out of the list of parameters");
    }
    if (tensor.scalar_type() == at::kDouble) {
      throw UnsupportedError(fmt::format("parameter '{}' is fp64", name),
                             "convert the model to fp32 before the engine is made");
    }
    if (torchx::FindManaged(tensor) != nullptr) {
      throw ConfigError(fmt::format("parameter '{}' has an engine already", name),
                        "end that engine first, or make the new one of another model");
    }
    const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    const bool shares = tensor.numel() > 0 && by_storage.count(storage) > 0;
    if (shares) {
      DistinctParameter& owner = distinct[by_storage[storage]];
      const at::Tensor& first = owner.tensors.front();
      if (first.sizes() != tensor.sizes() || first.storage_offset() != tensor.storage_offset() ||
          first.strides() != tensor.strides()) {
        throw UnsupportedError(
            fmt::format("parameters '{}' and '{}' overlap in one storage without being the same",
                        owner.spec.name, name),
            "give each a storage of its own (clone one of them)");
      }
      owner.tensors.push_back(tensor);
      owner.aliases.push_back(name);
      by_tensor[tensor.unsafeGetTensorImpl()] = by_storage[storage];
      continue;
    }
    DistinctParameter parameter;
    parameter.spec.name = name;
    parameter.spec.shape = tensor.sizes().vec();
    parameter.spec.numel = tensor.numel();
    parameter.spec.dtype = weight_dtype;
    parameter.spec.trainable = tensor.requires_grad();
    parameter.tensors = {tensor};
    by_tensor[tensor.unsafeGetTensorImpl()] = distinct.size();
    if (tensor.numel() > 0) by_storage[storage] = distinct.size();
    distinct.push_back(std::move(parameter));
  }
  if (distinct.empty()) {
    throw ConfigError("the model has no parameters", "pass the model that is to be trained");
  }
  return distinct;
}

}  // namespace engine
}  // namespace ullage
