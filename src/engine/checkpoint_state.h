// What saving and loading share: which elements a rank writes, what parts are called, and how the
// ranks agree on whether something went well.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "comm/comm.h"
#include "engine/core.h"
#include "files/safetensors.h"

namespace ullage::engine {

// Values travel between state and files in pieces of this many elements.
inline constexpr std::int64_t kCheckpointPieceNumel = 256 << 10;
// The prefix of the random generators' states in a rank's file.
inline constexpr const char* kRandomPart = "random";

// Elements [first, first + numel) of a parameter, which a rank writes.
struct WrittenPiece {
  int unit = 0;
  std::int64_t held_offset = 0;  // where `first` lies in what the rank holds of the unit
  int parameter = 0;
  std::int64_t first = 0;
  std::int64_t numel = 0;
  std::int64_t slice_offset = 0;  // where `first` lies in the rank's slice
};

// Every element of every parameter is written by one rank, the owner of its slice, also where other
// ranks hold it too: all write about the same. In the order of the units.
std::vector<WrittenPiece> PiecesWrittenBy(const plan::Plan& plan, int rank);

// Of the settings' optimizer, in the order of SliceOptimizer's moments.
const char* OptimizerName(OptimizerType type);
std::vector<std::string> MomentNames(const plan::Plan& plan, OptimizerType type);

// Nothing for types that safetensors cannot hold.
std::optional<files::ElementType> ToElementType(c10::ScalarType type);

// Throws StateError between Backward and Step.
void CheckBetweenSteps(const Engine::Core& core, const char* what);

// Collective: runs `body` on every rank. When it throws on some, all ranks throw: the first of them
// its own error, the others one that names it. No rank goes on before all are done.
void Agree(comm::Comm& comm, std::uint32_t item, const std::function<void()>& body);

// Numbers of the collectives of saving and loading.
enum class CheckpointItem : std::uint32_t {
  kPrepare = 0x53000000,
  kSizes,
  kFind,
  kOpen,
  kRead,
  kFinish,
};

}  // namespace ullage::engine
