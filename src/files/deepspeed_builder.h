// From the pickles of a DeepSpeed checkpoint to the pieces of files that its parameters are made
// of. Internal to the room.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "files/deepspeed_checkpoint.h"
#include "files/deepspeed_files.h"
#include "files/torch_file.h"

namespace ullage::files {

// A long vector of which files hold parts.
class FlatVector {
 public:
  using Piece = DeepSpeedCheckpoint::Piece;

  // Parts are added in order and do not overlap; there may be gaps between them.
  void Add(std::int64_t begin, const Piece& piece);
  // The pieces that hold elements begin .. begin + count - 1, as far as there are any.
  std::vector<Piece> Slice(std::int64_t begin, std::int64_t count) const;

 private:
  struct Part {
    std::int64_t begin;
    Piece piece;
  };
  std::vector<Part> parts_;
};

// Used once, by DeepSpeedCheckpoint::Open.
class DeepSpeedBuilder {
 public:
  DeepSpeedBuilder(FileSystem& fs, const DeepSpeedFiles& files, DeepSpeedCheckpoint& result)
      : fs_(fs), files_(files), result_(result) {}

  void Build();

 private:
  using Piece = DeepSpeedCheckpoint::Piece;
  using Parameter = DeepSpeedCheckpoint::Parameter;
  using Kind = DeepSpeedCheckpoint::Kind;
  static constexpr std::size_t kStates = DeepSpeedCheckpoint::kStates;

  struct Source {
    TorchFile file;
    std::uint32_t index;  // in the result's list
  };
  struct Named {
    std::string name;
    std::vector<std::int64_t> shape;
    std::int64_t numel = 0;
  };
  // One rank's part of one group of an optimizer.
  struct GroupState {
    std::array<std::optional<Piece>, kStates> pieces;
    std::optional<double> step;
  };
  using RankState = std::vector<GroupState>;

  Source OpenFile(const std::string& path);
  Piece PieceOf(const Source& source, const PickleValue& tensor, const std::string& what) const;
  std::optional<double> Scalar(const Source& source, std::optional<PickleValue> value) const;
  std::vector<Named> Shapes(const std::string& path, const PickleValue& dict) const;
  Parameter& Declare(const std::string& path, const Named& named, Kind kind);
  // `pieces` must have all elements of the parameter; for moments also none, when there are none.
  void Fill(Parameter& parameter, std::size_t state, std::vector<Piece> pieces);
  [[noreturn]] void Fail(const std::string& path, const std::string& what) const;

  // What a model file says besides weights.
  void ReadModelFile(const PickleValue& root, const std::string& path);
  // The module's buffers and those parameters that no group has: frozen ones.
  void AddFromModule(const Source& source);
  void AddShared(const PickleValue& root, const std::string& path);
  void ReadLossScale(const PickleValue& optimizer);
  RankState ReadOptimizerFile(const std::string& path, int rank);
  void ReadGroup(const Source& source, const PickleValue& state, GroupState& group) const;

  void BuildStage0(const Source& source);
  void AddStage0States(const Source& source, const std::vector<std::string>& names);
  void BuildFlat(const std::vector<RankState>& ranks);
  void BuildChunks(const std::vector<RankState>& ranks);
  void AddFrozenChunks();
  void BuildUniversal();

  FileSystem& fs_;
  const DeepSpeedFiles& files_;
  DeepSpeedCheckpoint& result_;
  bool has_groups_ = false;
  std::vector<std::vector<Named>> groups_;           // param_shapes
  std::vector<std::vector<std::int64_t>> paddings_;  // behind each of them, or nothing
};

}  // namespace ullage::files
