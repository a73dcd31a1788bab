// A checkpoint of two files and a few tensors, written without an engine.
#pragma once

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/shard_writer.h"
#include "files/scratch.h"

namespace testsupport {

// Elements of tensor "wide", of which the second file holds those from kCut on.
inline constexpr std::int64_t kWide = 700'001;
inline constexpr std::int64_t kCut = 400'000;

// Element i of a part of "wide"; every part has other values.
inline float WideValue(int part, std::int64_t i) {
  return static_cast<float>(i) + static_cast<float>(part) * 0.25f;
}

inline const std::vector<std::string>& WideParts() {
  static const std::vector<std::string> parts = {"master", "exp_avg", "exp_avg_sq"};
  return parts;
}

inline ullage::checkpoint::File WriteShard(ullage::files::FileSystem& fs,
                                           const std::string& directory, int rank,
                                           std::int64_t first, std::int64_t last) {
  using ullage::files::ElementType;
  std::vector<ullage::files::TensorDeclaration> tensors;
  for (const std::string& part : WideParts()) {
    tensors.push_back({part + ".wide", ElementType::kF32, {last - first}});
  }
  if (rank == 0) tensors.push_back({"weight.frozen", ElementType::kBF16, {3, 2}});
  ullage::checkpoint::ShardWriter shard(fs, directory, ullage::checkpoint::ShardName(rank, 2),
                                        tensors);
  for (int part = 0; part < 3; ++part) {
    std::vector<float> values;
    for (std::int64_t i = first; i < last; ++i) values.push_back(WideValue(part, i));
    shard.Append(values.data(), static_cast<std::int64_t>(4 * values.size()));
  }
  const std::vector<std::uint16_t> halves = {1, 2, 3, 4, 5, 6};
  if (rank == 0) shard.Append(halves.data(), 12);
  return shard.Finish();
}

inline ullage::checkpoint::Manifest SmallManifest(std::vector<ullage::checkpoint::File> files) {
  using ullage::checkpoint::Role;
  ullage::checkpoint::Manifest manifest;
  manifest.written_by = "a test";
  manifest.applied_steps = 7;
  manifest.skipped_steps = 2;
  manifest.seed = ~std::uint64_t{0};
  manifest.lr = 0.1;
  manifest.loss_scale = {1024, 9, 3, 2};
  manifest.optimizer = "adam";
  manifest.moments = {"exp_avg", "exp_avg_sq"};
  manifest.world_size = 2;
  manifest.stage = 3;
  manifest.precision = "bf16";
  manifest.settings = {{"zero_optimization.stage", "3"}};
  manifest.client_state = "{\"a\": \"\\u00e9\"}\n";
  manifest.files = std::move(files);
  ullage::checkpoint::Tensor wide;
  wide.name = "wide";
  wide.aliases = {"tied", "tied too"};
  wide.shape = {kWide};
  wide.numel = kWide;
  wide.slices = {{0, 0, kCut}, {1, kCut, kWide - kCut}};
  ullage::checkpoint::Tensor frozen;
  frozen.name = "frozen";
  frozen.role = Role::kFrozen;
  frozen.type = ullage::files::ElementType::kBF16;
  frozen.shape = {3, 2};
  frozen.numel = 6;
  frozen.slices = {{0, 0, 6}};
  ullage::checkpoint::Tensor empty;
  empty.name = "empty";
  empty.shape = {0, 4};
  manifest.tensors = {wide, frozen, empty};
  return manifest;
}

// Writes it into `directory`, which is made.
inline void WriteSmallCheckpoint(ullage::files::FileSystem& fs, const std::string& directory) {
  fs.CreateDirectories(directory);
  const std::string text = ullage::checkpoint::ToText(SmallManifest(
      {WriteShard(fs, directory, 0, 0, kCut), WriteShard(fs, directory, 1, kCut, kWide)}));
  const auto file = fs.Create(directory + "/" + ullage::checkpoint::kManifestFile);
  file->Append(text.data(), std::ssize(text));
  file->Close();
}

}  // namespace testsupport
