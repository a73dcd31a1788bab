// One parameter under the store's care.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "params/parameter_store.h"
#include "torchx/interception.h"

namespace ullage::params {

class ManagedParameter final : public torchx::ManagedStorage {
 public:
  ManagedParameter(ParameterStore& store, int index, int unit, const layout::Member& member,
                   const layout::ParameterSpec& spec);
  ~ManagedParameter() override;

  void Acquire(bool to_write) override;
  void Release(torchx::Outcome outcome) override;

  // Puts the parameter's storage under `tensors`, whose old storages are released.
  void Bind(std::vector<at::Tensor> tensors);
  // Gives the tensors a storage of their own with the present values, and forgets them.
  void Unbind();
  // Which of the tensors no longer lies on this storage; null when all do.
  const at::Tensor* Rebound() const;
  bool RequiresGradChanged() const;

  void SetPresent(std::byte* unit_data);
  void SetAbsent();
  void BumpVersion() const;

  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  int index() const { return index_; }
  int unit() const { return unit_; }
  const layout::Member& member() const { return member_; }
  const layout::ParameterSpec& spec() const { return spec_; }

 private:
  ParameterStore& store_;
  const int index_;
  const int unit_;
  const layout::Member member_;
  const layout::ParameterSpec& spec_;
  const std::string absent_message_;
  c10::Storage storage_;
  std::vector<at::Tensor> tensors_;
  bool NeedsCopyToWrite() const;

  // The weights before the writes that are going on, where an operator writes to those at home: by
  // depth, since scopes of Gather() may hold what an operator writes to.
  std::vector<memory::Buffer> before_;
};

}  // namespace ullage::params
