#include "checkpoint/deepspeed_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/parallel.h"
#include "kernels/cast.h"
#include "ullage/error.h"

namespace ullage::checkpoint {
namespace {

using files::DeepSpeedCheckpoint;
using files::DeepSpeedState;
using files::ElementType;

constexpr std::int64_t kPieceNumel = 128 << 10;  // at most a MiB

std::optional<DType> AsDType(ElementType type) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    if (files::ToElementType(dtype) == type) return dtype;
  }
  return std::nullopt;
}

DeepSpeedState StateOf(const std::string& part) {
  if (part == "exp_avg") return DeepSpeedState::kExpAvg;
  if (part == "exp_avg_sq") return DeepSpeedState::kExpAvgSq;
  return DeepSpeedState::kWeight;
}

bool HasMoments(const DeepSpeedCheckpoint& checkpoint, const std::string& name) {
  return checkpoint.Has(DeepSpeedState::kExpAvg, name) &&
         checkpoint.Has(DeepSpeedState::kExpAvgSq, name);
}

// Adam's t, which is one number here. Steps that were skipped for an overflow do not count.
std::int64_t AppliedSteps(const DeepSpeedCheckpoint& checkpoint) {
  const DeepSpeedCheckpoint::Parameter* first = nullptr;
  for (const DeepSpeedCheckpoint::Parameter& parameter : checkpoint.parameters()) {
    if (!parameter.optimizer_step) continue;
    const double step = *parameter.optimizer_step;
    if (!(step >= 0 && step <= 1e15 && step == std::floor(step))) {
      throw IoError(fmt::format("{}: '{}' is said to have had {} steps", checkpoint.folder(),
                                parameter.name, step),
                    "copy the checkpoint again");
    }
    if (first == nullptr) first = &parameter;
    if (step == *first->optimizer_step) continue;
    throw UnsupportedError(
        fmt::format("{}: '{}' has had {} steps, '{}' {}", checkpoint.folder(), first->name,
                    *first->optimizer_step, parameter.name, step),
        "all parameters take their steps together here: start from the weights, with --model");
  }
  if (first != nullptr) return static_cast<std::int64_t>(*first->optimizer_step);
  return std::max<std::int64_t>(0, checkpoint.global_steps() - checkpoint.skipped_steps());
}

Manifest Describe(const DeepSpeedCheckpoint& checkpoint) {
  Manifest manifest;
  manifest.written_by = "DeepSpeed";
  manifest.applied_steps = AppliedSteps(checkpoint);
  manifest.skipped_steps =
      std::max<std::int64_t>(0, checkpoint.global_steps() - manifest.applied_steps);
  manifest.world_size = checkpoint.ranks();
  manifest.stage = checkpoint.stage();
  if (const auto& scale = checkpoint.dynamic_loss_scale()) {
    manifest.precision = Name(DType::kFloat16);
    manifest.loss_scale = {scale->scale, scale->iteration, scale->last_overflow,
                           scale->hysteresis_left};
  }
  bool has_moments = false;
  for (const DeepSpeedCheckpoint::Parameter& parameter : checkpoint.parameters()) {
    has_moments |= HasMoments(checkpoint, parameter.name);
  }
  if (has_moments) {
    manifest.optimizer = "adam";
    manifest.moments = {"exp_avg", "exp_avg_sq"};
  } else {
    manifest.optimizer = "one without Adam's moments";
  }
  std::unordered_map<std::string, std::size_t> stored;
  for (const DeepSpeedCheckpoint::Parameter& parameter : checkpoint.parameters()) {
    if (!parameter.shared_with.empty()) continue;
    Tensor tensor;
    tensor.name = parameter.name;
    tensor.shape = parameter.shape;
    tensor.numel = parameter.numel;
    tensor.type = checkpoint.Type(DeepSpeedState::kWeight, parameter.name);
    if (parameter.kind == DeepSpeedCheckpoint::Kind::kBuffer) {
      tensor.role = Role::kBuffer;
      // DeepSpeed narrows buffers together with the weights.
      if (AsDType(tensor.type)) tensor.type = ElementType::kF32;
    } else if (parameter.kind == DeepSpeedCheckpoint::Kind::kFrozen ||
               (has_moments && !HasMoments(checkpoint, parameter.name))) {
      // At stage 0 only the moments tell.
      tensor.role = Role::kFrozen;
    } else if (AsDType(tensor.type)) {
      tensor.type = ElementType::kF32;
    }
    stored.emplace(tensor.name, manifest.tensors.size());
    manifest.tensors.push_back(std::move(tensor));
  }
  for (const DeepSpeedCheckpoint::Parameter& parameter : checkpoint.parameters()) {
    const auto found = stored.find(parameter.shared_with);
    if (found != stored.end()) manifest.tensors[found->second].aliases.push_back(parameter.name);
  }
  return manifest;
}

}  // namespace

DeepSpeedSource::DeepSpeedSource(files::FileSystem& fs, const std::string& directory,
                                 bool prefer_universal)
    : DeepSpeedSource(DeepSpeedCheckpoint::Open(fs, directory, prefer_universal)) {
  if (!prefer_universal || checkpoint_.universal()) return;
  throw ConfigError(
      fmt::format("checkpoint.load_universal is true, and {} is no universal checkpoint",
                  checkpoint_.folder()),
      "set it to false: checkpoints of ZeRO stages 0 to 3 are read as they are, on any ranks");
}

DeepSpeedSource::DeepSpeedSource(DeepSpeedCheckpoint checkpoint)
    : Source(checkpoint.folder(), Describe(checkpoint)), checkpoint_(std::move(checkpoint)) {
  notes_.push_back(fmt::format(
      "{}: DeepSpeed wrote it{} at stage {} on {} ranks; its random numbers and its order of the "
      "data are not in it",
      checkpoint_.folder(), checkpoint_.universal() ? " in its universal form" : "",
      checkpoint_.stage(), checkpoint_.ranks()));
  if (manifest().moments.empty()) {
    notes_.push_back(checkpoint_.moments_note().empty() ? "it has no exp_avg and exp_avg_sq"
                                                        : checkpoint_.moments_note());
  }
  const auto last = checkpoint_.last_batch_iteration();
  if (last && *last + 1 != manifest().applied_steps) {
    notes_.push_back(fmt::format(
        "its schedule has made {} steps, its optimizer {}: the schedule goes on behind the latter",
        *last + 1, manifest().applied_steps));
  }
}

void DeepSpeedSource::ReadPiece(const Range& range, std::int64_t first, std::int64_t count,
                                std::byte* out) const {
  const DeepSpeedState state = StateOf(range.part);
  const std::string& name = range.tensor->name;
  const ElementType stored = checkpoint_.Type(state, name);
  const ElementType wanted = Manifest::TypeOf(*range.tensor, range.part);
  if (stored == wanted) {
    checkpoint_.Read(state, name, first, count, out);
    return;
  }
  const auto from = AsDType(stored), to = AsDType(wanted);
  if (!from || !to) {
    throw UnsupportedError(fmt::format("{}: the {} of '{}' has type {}", directory(), range.part,
                                       name, files::Name(stored)),
                           "start from the weights, with --model");
  }
  std::vector<std::byte> raw(static_cast<std::size_t>(count * files::ElementBytes(stored)));
  checkpoint_.Read(state, name, first, count, raw.data());
  kernels::Convert(*from, raw.data(), *to, out, count);
}

void DeepSpeedSource::Read(std::span<const Range> ranges, const Take& take) const {
  struct Piece {
    std::size_t range;
    std::int64_t first;
    std::int64_t count;
  };
  std::vector<Piece> pieces;
  for (std::size_t r = 0; r < ranges.size(); ++r) {
    CheckRange(ranges[r]);
    for (std::int64_t done = 0; done < ranges[r].numel; done += kPieceNumel) {
      pieces.push_back({r, ranges[r].first + done, std::min(kPieceNumel, ranges[r].numel - done)});
    }
  }
  ParallelFor(0, std::ssize(pieces), 1, [&](std::int64_t from, std::int64_t to) {
    std::vector<std::byte> values;
    for (std::int64_t i = from; i < to; ++i) {
      const Piece& piece = pieces[static_cast<std::size_t>(i)];
      const Range& range = ranges[piece.range];
      const std::int64_t bytes =
          piece.count * files::ElementBytes(Manifest::TypeOf(*range.tensor, range.part));
      values.resize(static_cast<std::size_t>(bytes));
      ReadPiece(range, piece.first, piece.count, values.data());
      take(piece.range, piece.first, values.data(), piece.count);
    }
  });
}

void DeepSpeedSource::ReadInto(const Range& range, std::byte* out) const {
  CheckRange(range);
  ReadPiece(range, range.first, range.numel, out);
}

std::vector<std::byte> DeepSpeedSource::ReadWhole(std::int64_t /*file*/,
                                                  const std::string& /*name*/) const {
  return {};
}

}  // namespace ullage::checkpoint
