// Loading: what the checkpoint holds is compared with the model, then each rank reads what it owns.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_set>

#include "base/log.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/source.h"
#include "engine/checkpoint_state.h"
#include "engine/saver.h"
#include "kernels/cast.h"
#include "torchx/random.h"
#include "ullage/error.h"

namespace ullage {
namespace {

using checkpoint::Manifest;
using checkpoint::Role;
using checkpoint::Source;
using engine::Agree;
using engine::CheckpointItem;
using engine::HeldRange;

std::uint32_t Number(CheckpointItem item) {
  return static_cast<std::uint32_t>(item);
}

DType ToDType(files::ElementType type) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    if (files::ToElementType(dtype) == type) return dtype;
  }
  throw StateError(fmt::format("{} values are no weights", files::Name(type)));
}

bool IsWeight(files::ElementType type) {
  return type == files::ElementType::kF32 || type == files::ElementType::kBF16 ||
         type == files::ElementType::kF16;
}

// Where a range of the checkpoint goes.
struct Destination {
  int unit = 0;
  std::int64_t held_offset = 0;  // of the range's first element
  std::int64_t first = 0;
  int moment = -1;  // -1: the values
  DType dtype = DType::kFloat32;
};

class Loading {
 public:
  Loading(Engine::Core& core, const std::string& path, const LoadOptions& options)
      : core_(core),
        options_(options),
        fs_(options.file_system != nullptr ? *options.file_system : disk_),
        path_(path) {}

  CheckpointInfo Run() {
    Agree(comm(), Number(CheckpointItem::kFind), [&] {
      if (is_first()) Find();
    });
    ShareDirectory();
    Agree(comm(), Number(CheckpointItem::kOpen), [&] {
      core_.store->EndReading();
      source_ = checkpoint::OpenSource(fs_, path_, core_.settings.load_universal);
      notes_ = source_->notes();
      CheckModel();
      ReadLossScale();
      CollectRanges();
      ReadBuffers();
      ReadRandomStates();
    });
    try {
      Agree(comm(), Number(CheckpointItem::kRead), [&] {
        // The exchange above was the one after which nobody reads old weights.
        core_.store->BeginUpdate(/*frozen_too=*/true);
        source_->Read(ranges_, [this](std::size_t range, std::int64_t first,
                                      const std::byte* values, std::int64_t count) {
          Take(destinations_[range], first, values, count);
        });
      });
    } catch (const std::exception& error) {
      // Half of the state is new: nobody may go on with it.
      core_.ranks->Abort(fmt::format("loading {} failed: {}", path_, error.what()));
      throw;
    }
    for (std::size_t u = 0; u < core_.plan.units.size(); ++u) {
      core_.store->Publish(static_cast<int>(u));
    }
    core_.store->EndUpdate();
    TakeRest();
    comm().Barrier(Number(CheckpointItem::kFinish));
    for (const std::string& note : notes_) {
      if (is_first()) LogInfo("checkpoint", note);
    }
    const Manifest& manifest = source_->manifest();
    return {source_->directory(), manifest.applied_steps, manifest.skipped_steps,
            static_cast<int>(manifest.world_size), manifest.client_state};
  }

 private:
  comm::Comm& comm() const { return core_.comm(); }
  bool is_first() const { return core_.ranks->rank() == 0; }
  const Manifest& manifest() const { return source_->manifest(); }

  // A folder of checkpoints stands for the one to go on from.
  void Find() {
    if (fs_.Stat(path_ + "/" + checkpoint::kManifestFile)) return;
    if (checkpoint::IsDeepSpeed(fs_, path_)) return;
    const checkpoint::CheckpointFolder folder(fs_, path_);
    if (folder.Steps().empty()) return;  // opening it says what is missing
    std::vector<std::string> passed_over;
    if (const auto latest = folder.Latest(&passed_over)) {
      path_ = *latest;
      return;
    }
    throw IoError(fmt::format("{}: holds no complete checkpoint:\n  {}", path_,
                              fmt::join(passed_over, "\n  ")),
                  "copy the whole folder again, or start anew");
  }

  void ShareDirectory() {
    std::vector<std::byte> text(4096);
    if (path_.size() >= text.size()) {
      throw ConfigError(fmt::format("a path of {} bytes", path_.size()), "use a shorter one");
    }
    std::memcpy(text.data(), path_.c_str(), path_.size());
    comm().Broadcast(text, 0, Number(CheckpointItem::kFind));
    path_ = reinterpret_cast<const char*>(text.data());
  }

  void CheckModel() {
    std::vector<std::string> problems;
    std::unordered_set<const checkpoint::Tensor*> used;
    for (std::size_t p = 0; p < core_.plan.parameters.size(); ++p) {
      const layout::ParameterSpec& spec = core_.plan.parameters[p];
      const checkpoint::Tensor* tensor = Find(core_.parameters[p]);
      if (tensor == nullptr) {
        problems.push_back(fmt::format("{}: is not in the checkpoint", spec.name));
        continue;
      }
      used.insert(tensor);
      if (tensor->shape != spec.shape) {
        problems.push_back(fmt::format("{}: the model has shape {}, the checkpoint {}", spec.name,
                                       files::FormatShape(spec.shape),
                                       files::FormatShape(tensor->shape)));
      } else if (!IsWeight(tensor->type)) {
        problems.push_back(
            fmt::format("{}: the checkpoint has type {}", spec.name, files::Name(tensor->type)));
      } else if (!options_.weights_only && spec.trainable != (tensor->role == Role::kTrained)) {
        problems.push_back(fmt::format("{}: {} in the model, {} in the checkpoint", spec.name,
                                       spec.trainable ? "trained" : "frozen", Name(tensor->role)));
      }
    }
    std::unordered_set<std::string> buffers;
    for (const auto& [name, buffer] : core_.buffers) {
      if (buffer.is_meta()) continue;
      buffers.insert(name);
      const checkpoint::Tensor* tensor = source_->FindBuffer(name);
      if (tensor == nullptr && source_->is_foreign()) {
        notes_.push_back(fmt::format("{}: the buffer is not in it and stays as it is", name));
      } else if (tensor == nullptr) {
        problems.push_back(fmt::format("{}: the buffer is not in the checkpoint", name));
      } else if (tensor->shape != buffer.sizes().vec() ||
                 tensor->type != engine::ToElementType(buffer.scalar_type())) {
        problems.push_back(fmt::format(
            "{}: the buffer has shape {} and type {}, in the checkpoint {} and {}", name,
            files::FormatShape(buffer.sizes().vec()), c10::toString(buffer.scalar_type()),
            files::FormatShape(tensor->shape), files::Name(tensor->type)));
      }
    }
    for (const checkpoint::Tensor& tensor : manifest().tensors) {
      const bool known =
          tensor.role == Role::kBuffer ? buffers.contains(tensor.name) : used.contains(&tensor);
      if (known) continue;
      const bool matters = tensor.role != Role::kBuffer || !source_->is_foreign();
      (matters ? problems : notes_).push_back(fmt::format("{}: is not in the model", tensor.name));
    }
    if (!options_.weights_only) CheckOptimizer(problems);
    if (problems.empty()) return;
    constexpr std::size_t kShown = 20;
    const std::size_t more = problems.size() - std::min(kShown, problems.size());
    problems.resize(problems.size() - more);
    throw ConfigError(
        fmt::format("{}: does not fit:\n  {}{}", path_, fmt::join(problems, "\n  "),
                    more > 0 ? fmt::format("\n  and {} more", more) : ""),
        "load it into the model that was saved, with the same optimizer; weights_only leaves the "
        "optimizer's state out");
  }

  void CheckOptimizer(std::vector<std::string>& problems) const {
    const OptimizerType type = core_.settings.optimizer.type;
    if (manifest().optimizer == engine::OptimizerName(type) &&
        manifest().moments == engine::MomentNames(core_.plan, type)) {
      return;
    }
    problems.push_back(fmt::format("optimizer: {} with [{}] here, {} with [{}] in the checkpoint",
                                   engine::OptimizerName(type),
                                   fmt::join(engine::MomentNames(core_.plan, type), ", "),
                                   manifest().optimizer, fmt::join(manifest().moments, ", ")));
    if (!source_->is_foreign()) return;
    for (const std::string& note : source_->notes()) problems.push_back(note);
  }

  // A scale that another precision never used says nothing about this one.
  void ReadLossScale() {
    scaler_ = core_.scaler;
    const std::string_view fp16 = Name(DType::kFloat16);
    if (manifest().precision != fp16 || Name(core_.plan.weight_dtype) != fp16) return;
    const checkpoint::LossScale& state = manifest().loss_scale;
    scaler_->set_state({state.scale, state.iteration, state.last_overflow,
                        static_cast<int>(state.hysteresis_left)});
  }

  // A tied parameter may go by any of its names.
  const checkpoint::Tensor* Find(const engine::DistinctParameter& parameter) const {
    if (const checkpoint::Tensor* tensor = source_->Find(parameter.spec.name)) return tensor;
    for (const std::string& alias : parameter.aliases) {
      if (const checkpoint::Tensor* tensor = source_->Find(alias)) return tensor;
    }
    return nullptr;
  }

  void CollectRanges() {
    for (std::size_t p = 0; p < core_.plan.parameters.size(); ++p) {
      const HeldRange held =
          engine::HeldRangeOf(core_.plan, core_.ranks->rank(), static_cast<int>(p));
      if (held.unit < 0 || held.begin == held.end) continue;
      const checkpoint::Tensor* tensor = Find(core_.parameters[p]);
      const auto add = [&](const std::string& part, int moment) {
        ranges_.push_back({tensor, part, held.begin, held.end - held.begin});
        destinations_.push_back({held.unit, held.held_offset, held.begin, moment,
                                 ToDType(Manifest::TypeOf(*tensor, part))});
      };
      add(manifest().PartsOf(*tensor).front(), -1);
      if (options_.weights_only || !core_.plan.parameters[p].trainable) continue;
      for (std::size_t m = 0; m < manifest().moments.size(); ++m) {
        add(manifest().moments[m], static_cast<int>(m));
      }
    }
  }

  // Any thread.
  void Take(const Destination& to, std::int64_t first, const std::byte* bytes, std::int64_t count) {
    const std::int64_t at = to.held_offset + first - to.first;
    std::vector<float> wide;
    const auto* values = reinterpret_cast<const float*>(bytes);
    if (to.dtype != DType::kFloat32) {
      wide.resize(static_cast<std::size_t>(count));
      kernels::Convert(to.dtype, bytes, DType::kFloat32, wide.data(), count);
      values = wide.data();
    }
    const std::span<const float> span(values, static_cast<std::size_t>(count));
    // State in memory takes elements from several threads; a device's queue belongs to one.
    const plan::Tier home = core_.plan.units[static_cast<std::size_t>(to.unit)].home;
    std::unique_lock lock(mutex_, std::defer_lock);
    if (core_.memory.OnCuda(home)) lock.lock();
    if (to.moment < 0) {
      core_.optimizer->StoreMaster(to.unit, at, span);
    } else {
      core_.optimizer->StoreMoment(to.unit, to.moment, at, span);
    }
  }

  void ReadBuffers() {
    for (const auto& [name, buffer] : core_.buffers) {
      if (buffer.is_meta()) continue;
      const checkpoint::Tensor* tensor = source_->FindBuffer(name);
      if (tensor == nullptr) continue;
      at::Tensor values = at::empty(buffer.sizes(), at::TensorOptions().dtype(buffer.dtype()));
      source_->ReadInto({tensor, "buffer", 0, tensor->numel},
                        static_cast<std::byte*>(values.mutable_data_ptr()));
      buffers_.emplace_back(buffer, std::move(values));
    }
  }

  // Each rank's own, which mean nothing to another number of ranks.
  void ReadRandomStates() {
    if (options_.weights_only || manifest().world_size != core_.ranks->world_size()) return;
    for (const auto& [name, state] : torchx::GeneratorStates(core_.memory.device())) {
      const std::vector<std::byte> bytes = source_->ReadWhole(
          core_.ranks->rank(), checkpoint::NameInFile(engine::kRandomPart, name));
      // Another torch, or none when the checkpoint was written on another device.
      if (static_cast<std::int64_t>(bytes.size()) != state.numel()) continue;
      at::Tensor values = at::empty({state.numel()}, at::TensorOptions().dtype(at::kByte));
      std::memcpy(values.mutable_data_ptr(), bytes.data(), bytes.size());
      random_states_.emplace_back(name, std::move(values));
    }
  }

  void TakeRest() {
    const c10::NoGradGuard no_grad;
    for (auto& [buffer, values] : buffers_) buffer.copy_(values);
    if (options_.weights_only) return;
    core_.applied_steps = manifest().applied_steps;
    core_.skipped_steps = manifest().skipped_steps;
    if (!source_->is_foreign()) core_.seed = manifest().seed;
    core_.scaler = *scaler_;
    for (const auto& [name, state] : random_states_) {
      torchx::SetGeneratorState(name, state, core_.memory.device());
    }
  }

  Engine::Core& core_;
  const LoadOptions& options_;
  files::PosixFileSystem disk_;
  files::FileSystem& fs_;
  std::string path_;
  std::unique_ptr<Source> source_;
  std::vector<std::string> notes_;
  std::vector<checkpoint::Range> ranges_;
  std::vector<Destination> destinations_;                   // of each range
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;  // and their new values
  std::vector<std::pair<std::string, at::Tensor>> random_states_;
  std::optional<optim::LossScaler> scaler_;
  std::mutex mutex_;
};

}  // namespace

CheckpointInfo Engine::LoadCheckpoint(const std::string& path, const LoadOptions& options) {
  engine::CheckBetweenSteps(*core_, "LoadCheckpoint");
  if (core_->memory.is_dry()) {
    throw StateError("a dry run has no state to load", "load into an engine that trains");
  }
  core_->store->CheckBindings();
  core_->host_updates->Finish();
  try {
    core_->saver->Finish();
  } catch (const IoError& error) {
    LogWarn("checkpoint", fmt::format("the last save failed: {}", error.what()));
  }
  return Loading(*core_, path, options).Run();
}

}  // namespace ullage
