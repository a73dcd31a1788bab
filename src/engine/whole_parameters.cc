// Whole parameters for those who need them: raw access, export, the hash of a run.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/sha256.h"
#include "engine/core.h"
#include "ullage/error.h"

namespace ullage {
namespace {

constexpr std::int64_t kPieceNumel = 1 << 20;
constexpr std::uint32_t kReadItem = 0x52000000;

}  // namespace

int engine::FindParameter(const plan::Plan& plan, const std::string& name) {
  const auto found = std::ranges::find(plan.parameters, name, &layout::ParameterSpec::name);
  if (found == plan.parameters.end()) {
    throw ConfigError(fmt::format("there is no parameter '{}'", name),
                      "names are those of the list that the engine was made with; a tied parameter "
                      "is known by its first name");
  }
  return static_cast<int>(found - plan.parameters.begin());
}

struct Engine::Gathered::State {
  params::ParameterStore& store;
  std::vector<int> parameters;
  bool write;
};

Engine::Gathered::Gathered(std::unique_ptr<State> state) : state_(std::move(state)) {}
Engine::Gathered::Gathered(Gathered&&) noexcept = default;

Engine::Gathered::~Gathered() noexcept(false) {
  if (state_ != nullptr) state_->store.Release(state_->parameters, state_->write);
}

Engine::Gathered Engine::Gather(const std::vector<std::string>& names, bool write) {
  std::vector<int> parameters;
  if (names.empty()) {
    parameters.resize(core_->plan.parameters.size());
    std::iota(parameters.begin(), parameters.end(), 0);
  }
  for (const std::string& name : names) {
    parameters.push_back(engine::FindParameter(core_->plan, name));
  }
  core_->store->Acquire(parameters, write);
  return Gathered(std::make_unique<Gathered::State>(
      Gathered::State{*core_->store, std::move(parameters), write}));
}

void Engine::ForEachParameter(const std::function<void(const ParameterPiece&)>& take) {
  Core& core = *core_;
  core.TellingOthers([&] {
    std::vector<float> values;
    for (std::size_t p = 0; p < core.plan.parameters.size(); ++p) {
      const layout::ParameterSpec& spec = core.plan.parameters[p];
      ParameterPiece piece{&spec.name, spec.shape, 0, {}};
      if (spec.numel == 0) take(piece);
      for (int owner = 0; owner < core.plan.world_size; ++owner) {
        const engine::HeldRange held = engine::HeldRangeOf(core.plan, owner, static_cast<int>(p));
        if (held.unit < 0) break;
        const plan::UnitPlan& unit = core.plan.units[static_cast<std::size_t>(held.unit)];
        const bool everywhere = !unit.unit.sliced && unit.state != plan::StateShare::kSlice;
        if (everywhere && owner > 0) break;
        const bool is_mine = everywhere || owner == core.ranks->rank();
        for (std::int64_t first = held.begin; first < held.end; first += kPieceNumel) {
          const std::int64_t count = std::min(kPieceNumel, held.end - first);
          values.resize(static_cast<std::size_t>(count));
          if (is_mine) {
            core.optimizer->LoadMaster(held.unit, held.held_offset + first - held.begin, values);
          }
          if (!everywhere) {
            core.comm().Broadcast(std::as_writable_bytes(std::span(values)), owner,
                                  kReadItem | static_cast<std::uint32_t>(p));
          }
          piece.first = first;
          piece.values = values;
          take(piece);
        }
      }
    }
  });
}

std::string Engine::ParametersSha256() {
  Sha256 hash;
  ForEachParameter([&hash](const ParameterPiece& piece) {
    if (piece.first == 0) {
      hash.Update(piece.name->c_str(), piece.name->size() + 1);
      const auto rank = static_cast<std::int64_t>(piece.shape.size());
      hash.Update(&rank, sizeof(rank));
      hash.Update(piece.shape.data(), piece.shape.size_bytes());
    }
    hash.Update(piece.values.data(), piece.values.size_bytes());
  });
  return hash.HexDigest();
}

}  // namespace ullage
