#include "engine/checkpoint_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>

#include "ullage/error.h"

namespace ullage::engine {

std::vector<WrittenPiece> PiecesWrittenBy(const plan::Plan& plan, int rank) {
  std::vector<WrittenPiece> pieces;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const plan::UnitPlan& unit = plan.units[u];
    const bool holds_slice = unit.unit.sliced || unit.state == plan::StateShare::kSlice;
    const std::int64_t before = holds_slice ? 0 : rank * unit.unit.slice_numel;
    for (const layout::Piece& piece : layout::PiecesOfSlice(unit.unit, rank)) {
      pieces.push_back({static_cast<int>(u), before + piece.slice_offset, piece.parameter,
                        piece.parameter_offset, piece.numel, piece.slice_offset});
    }
  }
  return pieces;
}

const char* OptimizerName(OptimizerType type) {
  return type == OptimizerType::kAdam ? "adam" : "sgd";
}

std::vector<std::string> MomentNames(const plan::Plan& plan, OptimizerType type) {
  std::vector<std::string> names;
  if (type == OptimizerType::kAdam) {
    names.emplace_back("exp_avg");
    names.emplace_back("exp_avg_sq");
  } else if (plan.moments > 0) {
    names.emplace_back("momentum_buffer");
  }
  return names;
}

std::optional<files::ElementType> ToElementType(c10::ScalarType type) {
  using files::ElementType;
  switch (type) {
    case c10::ScalarType::Double:
      return ElementType::kF64;
    case c10::ScalarType::Float:
      return ElementType::kF32;
    case c10::ScalarType::Half:
      return ElementType::kF16;
    case c10::ScalarType::BFloat16:
      return ElementType::kBF16;
    case c10::ScalarType::Long:
      return ElementType::kI64;
    case c10::ScalarType::Int:
      return ElementType::kI32;
    case c10::ScalarType::Short:
      return ElementType::kI16;
    case c10::ScalarType::Char:
      return ElementType::kI8;
    case c10::ScalarType::Byte:
      return ElementType::kU8;
    case c10::ScalarType::Bool:
      return ElementType::kBool;
    case c10::ScalarType::ComplexFloat:
      return ElementType::kC64;
    default:
      return std::nullopt;
  }
}

void CheckBetweenSteps(const Engine::Core& core, const char* what) {
  if (core.backwards == 0) return;
  throw StateError(
      fmt::format("{} after {} Backward calls of a step: their gradients are in no checkpoint",
                  what, core.backwards),
      "call it after Step()");
}

void Agree(comm::Comm& comm, std::uint32_t item, const std::function<void()>& body) {
  std::array<char, 2048> mine = {};
  std::exception_ptr error;
  try {
    body();
  } catch (const CommError&) {
    throw;  // the group is lost: nobody can be told
  } catch (const std::exception& thrown) {
    error = std::current_exception();
    const std::string text = thrown.what();
    std::memcpy(mine.data(), text.data(), std::min(text.size(), mine.size() - 1));
    if (text.empty()) mine[0] = ' ';
  }
  std::vector<char> all(mine.size() * static_cast<std::size_t>(comm.world_size()));
  comm.AllGather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), item);
  for (int rank = 0; rank < comm.world_size(); ++rank) {
    const char* text = all.data() + mine.size() * static_cast<std::size_t>(rank);
    if (*text == '\0') continue;
    if (error) std::rethrow_exception(error);
    throw IoError(fmt::format("rank {}: {}", rank, text));
  }
}

}  // namespace ullage::engine
