// A checkpoint that DeepSpeed wrote (ZeRO stages 0 to 3, or the universal form): its parameters,
// and any range of elements of their master weights and Adam moments, from the files of all ranks.
//
// What DeepSpeed writes, as far as it is read here (W ranks):
//   stage 0    mp_rank_00_model_states.pt: module, optimizer
//   stage 1,2  the same with param_shapes, a dict of names and shapes for each group in the order
//   of
//              the flat vector, which is cut into W equal parts; rank r's is in
//              zero_pp_rank_r_mp_rank_00_optim_states.pt: single_partition_of_fp32_groups (padding
//              mostly stripped from its end) and base_optimizer_state (not stripped).
//   stage 3    a model file for every rank. A parameter is cut into W chunks of
//              ceil(numel / W) elements, the last one padded; rank r's chunks of a sub-group follow
//              each other in fp32_flat_groups and in the moments of optimizer_state_dict.
//   universal  zero/NAME/fp32.pt, exp_avg.pt, exp_avg_sq.pt, step.pt: whole parameters.
// Optimizer files have the prefix bf16_ when bf16 is on. Positions come from param_shapes alone:
// param_slice_mappings is not that of the flat vector when round_robin_gradients is on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "files/file_system.h"
#include "files/safetensors.h"

namespace ullage::files {

enum class DeepSpeedState : std::uint8_t { kWeight, kExpAvg, kExpAvgSq };

class DeepSpeedCheckpoint {
 public:
  static constexpr std::size_t kStates = 3;
  enum class Kind : std::uint8_t { kTrained, kFrozen, kBuffer };

  // `count` elements that follow each other in a file.
  struct Piece {
    std::uint32_t file = 0;
    ElementType type = ElementType::kF32;
    std::int64_t offset = 0;  // bytes
    std::int64_t count = 0;
  };

  struct Parameter {
    std::string name;
    Kind kind = Kind::kTrained;
    std::string shared_with;  // the name that its values are stored under, or empty
    std::vector<std::int64_t> shape;
    std::int64_t numel = 0;
    // By DeepSpeedState. Weights of trained parameters are the fp32 master values, except at stage
    // 0, where they are those of the model unless it can be told whose the master values are.
    std::array<std::vector<Piece>, kStates> pieces;
    std::array<bool, kStates> has{};
    std::array<ElementType, kStates> type{};
    std::optional<double> optimizer_step;  // Adam's t
  };

  struct DynamicLossScale {
    double scale = 1;
    std::int64_t iteration = 0;
    std::int64_t last_overflow = -1;  // -1: none
    std::int64_t hysteresis_left = 1;
  };

  // True when `directory` is one, by its files' names. Throws as FindDeepSpeedFiles does.
  static bool IsOne(FileSystem& fs, const std::string& directory);

  // `directory` is the folder that save_checkpoint was given (its file `latest` is followed, or,
  // with `prefer_universal`, first `latest_universal`) or that of one checkpoint. Reads and checks
  // the pickles of every rank's files, one after the other, and no tensor. Throws IoError for
  // missing and inconsistent files, UnsupportedError for models that were split in other ways. `fs`
  // must outlive the result, which holds no file open.
  static DeepSpeedCheckpoint Open(FileSystem& fs, const std::string& directory,
                                  bool prefer_universal = false);

  const std::string& folder() const { return folder_; }
  int stage() const { return stage_; }  // 0 to 3
  int ranks() const { return ranks_; }  // that wrote it
  bool universal() const { return universal_; }
  std::int64_t global_steps() const { return global_steps_; }  // skipped ones included
  std::int64_t skipped_steps() const { return skipped_steps_; }
  std::int64_t global_samples() const { return global_samples_; }
  std::optional<double> loss_scale() const { return loss_scale_; }
  // That of fp16 where it grows and shrinks, as optim::LossScaleState counts.
  const std::optional<DynamicLossScale>& dynamic_loss_scale() const { return dynamic_loss_scale_; }
  // Of DeepSpeed's own schedules.
  std::optional<std::int64_t> last_batch_iteration() const { return last_batch_iteration_; }
  // Why moments are not readable, or empty.
  const std::string& moments_note() const { return moments_note_; }

  const std::vector<Parameter>& parameters() const { return parameters_; }
  const Parameter* Find(const std::string& name) const;  // null: none of this name
  const Parameter& Get(const std::string& name) const;   // throws IoError

  // Whether the values are there; those of shared parameters are.
  bool Has(DeepSpeedState state, const std::string& name) const;
  // Elements first .. first + count - 1 of the flattened parameter in Type(state, name) and
  // little-endian. Any thread. Throws IoError when they are not there.
  void Read(DeepSpeedState state, const std::string& name, std::int64_t first, std::int64_t count,
            void* out) const;
  ElementType Type(DeepSpeedState state, const std::string& name) const;

 private:
  friend class DeepSpeedBuilder;
  explicit DeepSpeedCheckpoint(FileSystem& fs) : fs_(&fs) {}
  const Parameter& Stored(const std::string& name) const;

  FileSystem* fs_;
  std::string folder_;
  int stage_ = 0;
  int ranks_ = 1;
  bool universal_ = false;
  std::int64_t global_steps_ = 0;
  std::int64_t skipped_steps_ = 0;
  std::int64_t global_samples_ = 0;
  std::optional<double> loss_scale_;
  std::optional<DynamicLossScale> dynamic_loss_scale_;
  std::optional<std::int64_t> last_batch_iteration_;
  std::string moments_note_;
  std::vector<std::string> files_;  // that pieces are in
  std::vector<Parameter> parameters_;
  std::unordered_map<std::string, std::size_t> by_name_;
};

}  // namespace ullage::files
