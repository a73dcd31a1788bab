#include "engine/checkpoint_contents.h"

#include <fmt/format.h>

#include <algorithm>

#include "torchx/random.h"
#include "ullage/error.h"

namespace ullage::engine {
namespace {

using checkpoint::NameInFile;

void AddTensor(std::vector<SavedTensor>& all, std::string name, files::ElementType type,
               const at::Tensor& tensor) {
  if (tensor.numel() == 0) return;
  SavedTensor saved;
  saved.declaration = {std::move(name), type, tensor.sizes().vec()};
  saved.bytes = tensor.detach().to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false,
                                   /*copy=*/true, at::MemoryFormat::Contiguous);
  all.push_back(std::move(saved));
}

void AddParameters(const Engine::Core& core, std::vector<SavedTensor>& all) {
  const std::vector<std::string> moments = MomentNames(core.plan, core.settings.optimizer.type);
  for (const WrittenPiece& piece : PiecesWrittenBy(core.plan, core.ranks->rank())) {
    const layout::ParameterSpec& spec =
        core.plan.parameters[static_cast<std::size_t>(piece.parameter)];
    // A tensor that lies in one file is found there as it is.
    const std::vector<std::int64_t> shape =
        piece.numel == spec.numel ? spec.shape : std::vector<std::int64_t>(1, piece.numel);
    if (!spec.trainable) {
      all.push_back(
          {{NameInFile("weight", spec.name), files::ToElementType(spec.dtype), shape}, piece});
      continue;
    }
    all.push_back({{NameInFile("master", spec.name), files::ElementType::kF32, shape}, piece});
    for (std::size_t m = 0; m < moments.size(); ++m) {
      all.push_back({{NameInFile(moments[m], spec.name), files::ElementType::kF32, shape},
                     piece,
                     static_cast<int>(m)});
    }
  }
}

}  // namespace

std::vector<SavedTensor> SavedTensors(const Engine::Core& core) {
  std::vector<SavedTensor> all;
  AddParameters(core, all);
  if (core.ranks->rank() == 0) {
    for (const auto& [name, buffer] : core.buffers) {
      if (buffer.is_meta()) continue;
      const auto type = ToElementType(buffer.scalar_type());
      if (!type || buffer.layout() != at::kStrided) {
        throw UnsupportedError(fmt::format("buffer '{}' is {} and cannot be saved", name,
                                           c10::toString(buffer.scalar_type())),
                               "leave it out of the list of buffers");
      }
      AddTensor(all, NameInFile("buffer", name), *type, buffer);
    }
  }
  for (const auto& [name, state] : torchx::GeneratorStates(core.memory.device())) {
    AddTensor(all, NameInFile(kRandomPart, name), files::ElementType::kU8, state);
  }
  // No element may lie in two blocks. A unit's tensors are of one width and stay together.
  std::ranges::stable_sort(all, std::ranges::greater(), [](const SavedTensor& tensor) {
    return files::ElementBytes(tensor.declaration.type);
  });
  return all;
}

checkpoint::Manifest DescribeCheckpoint(const Engine::Core& core, const std::string& client_state) {
  checkpoint::Manifest manifest;
  manifest.written_by = "ullage";
  manifest.applied_steps = core.applied_steps;
  manifest.skipped_steps = core.skipped_steps;
  manifest.seed = core.seed;
  manifest.lr = core.schedule.LrAt(core.applied_steps);
  const optim::LossScaleState& scale = core.scaler.state();
  manifest.loss_scale = {scale.scale, scale.iteration, scale.last_overflow, scale.hysteresis_left};
  manifest.optimizer = OptimizerName(core.settings.optimizer.type);
  manifest.moments = MomentNames(core.plan, core.settings.optimizer.type);
  manifest.world_size = core.ranks->world_size();
  manifest.stage = core.plan.stage;
  manifest.precision = std::string(Name(core.plan.weight_dtype));
  for (const EffectiveSetting& row : core.settings.Effective()) {
    manifest.settings.emplace_back(row.key, row.value);
  }
  manifest.client_state = client_state;
  for (std::size_t p = 0; p < core.plan.parameters.size(); ++p) {
    const layout::ParameterSpec& spec = core.plan.parameters[p];
    checkpoint::Tensor tensor;
    tensor.name = spec.name;
    tensor.aliases = core.parameters[p].aliases;
    tensor.role = spec.trainable ? checkpoint::Role::kTrained : checkpoint::Role::kFrozen;
    tensor.type = spec.trainable ? files::ElementType::kF32 : files::ToElementType(spec.dtype);
    tensor.shape = spec.shape;
    tensor.numel = spec.numel;
    manifest.tensors.push_back(std::move(tensor));
  }
  // Ranks own a parameter from left to right.
  for (int rank = 0; rank < core.plan.world_size; ++rank) {
    for (const WrittenPiece& piece : PiecesWrittenBy(core.plan, rank)) {
      manifest.tensors[static_cast<std::size_t>(piece.parameter)].slices.push_back(
          {rank, piece.first, piece.numel});
    }
  }
  for (const auto& [name, buffer] : core.buffers) {
    if (buffer.is_meta()) continue;
    checkpoint::Tensor tensor;
    tensor.name = name;
    tensor.role = checkpoint::Role::kBuffer;
    tensor.type = *ToElementType(buffer.scalar_type());
    tensor.shape = buffer.sizes().vec();
    tensor.numel = buffer.numel();
    if (tensor.numel > 0) tensor.slices.push_back({0, 0, tensor.numel});
    manifest.tensors.push_back(std::move(tensor));
  }
  return manifest;
}

}  // namespace ullage::engine
