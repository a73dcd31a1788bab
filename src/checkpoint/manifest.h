// What a checkpoint says about itself: the manifest.json that its tensor files belong to.
//
// docs/checkpoint_format.md describes the format and its versions. A manifest is written last, so
// that a checkpoint without one is none; its last line is the checksum of everything before it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "files/file_system.h"
#include "files/safetensors.h"

namespace ullage::checkpoint {

inline constexpr const char* kManifestFile = "manifest.json";
// The version of the format that is written, and the newest that is read.
inline constexpr std::int64_t kFormatVersion = 1;

// What a tensor is to the training, which decides in which parts it is stored.
enum class Role : std::uint8_t {
  kTrained,  // "master", the fp32 values, and one part for each moment; all F32
  kFrozen,   // "weight", in the type that the model computes with
  kBuffer,   // "buffer", in its own type
};

// Elements [first, first + numel) of the flattened tensor, which lie in one file.
struct Slice {
  std::int64_t file = 0;  // index into Manifest::files
  std::int64_t first = 0;
  std::int64_t numel = 0;

  friend bool operator==(const Slice&, const Slice&) = default;
};

struct Tensor {
  std::string name;
  std::vector<std::string> aliases;  // other names of the same tensor
  Role role = Role::kTrained;
  files::ElementType type = files::ElementType::kF32;  // of its values
  std::vector<std::int64_t> shape;
  std::int64_t numel = 0;
  std::vector<Slice> slices;  // in order; together all elements, each once
};

struct File {
  std::string name;  // in the checkpoint's directory
  std::int64_t bytes = 0;
  std::vector<std::uint64_t> checksums;  // of each block (block_checksums.h)
};

// The state of optim::LossScaler.
struct LossScale {
  double scale = 1;
  std::int64_t iteration = 0;
  std::int64_t last_overflow = -1;
  std::int64_t hysteresis_left = 1;
};

struct Manifest {
  std::string written_by;  // program and version, for people
  std::int64_t applied_steps = 0;
  std::int64_t skipped_steps = 0;
  std::uint64_t seed = 0;
  double lr = 0;  // that the next step would use, for people
  LossScale loss_scale;
  std::string optimizer;             // "adam", "sgd"
  std::vector<std::string> moments;  // "exp_avg", "exp_avg_sq" or "momentum_buffer"
  std::int64_t world_size = 1;
  std::int64_t stage = 0;
  std::string precision;                                      // "fp32", "bf16", "fp16"
  std::vector<std::pair<std::string, std::string>> settings;  // the effective ones, for people
  std::string client_state;                                   // the caller's own, as it gave it
  std::vector<File> files;
  std::vector<Tensor> tensors;  // in the model's order, buffers last

  std::int64_t steps() const { return applied_steps + skipped_steps; }
  // The parts in which `tensor` is stored.
  std::vector<std::string> PartsOf(const Tensor& tensor) const;
  // Type of a part's elements.
  static files::ElementType TypeOf(const Tensor& tensor, std::string_view part);
};

// The name of a slice's tensor in its file: "master.bert.pooler.weight".
std::string NameInFile(std::string_view part, const std::string& tensor);

std::string_view Name(Role role);  // "trained", "frozen", "buffer"

// The text of manifest.json, its checksum included.
std::string ToText(const Manifest& manifest);

// Nothing in the text is believed: throws IoError, which begins with `path` and says what is wrong
// and where, for anything that ToText would not write; UnsupportedError for a newer version.
Manifest ParseManifest(const std::string& path, std::string_view text);

// Reads and parses the manifest of the checkpoint in `directory`. Throws IoError that says so when
// it has none.
Manifest ReadManifest(files::FileSystem& fs, const std::string& directory);

}  // namespace ullage::checkpoint
