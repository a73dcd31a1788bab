// One rank's parameters under a store, with values that tests can compute.
#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "params/parameter_store.h"
#include "support/logged_lines.h"
#include "ullage/settings.h"

namespace ullage::params {

struct WorldOptions {
  int world_size = 1;
  int stage = 3;
  std::int64_t unit_bytes = 1;  // each parameter a unit of its own
  Precision precision = Precision::kFloat32;
  std::int64_t persistence_threshold = 0;        // elements; smaller parameters stay whole
  std::optional<double> offload_optimizer = {};  // the ratio
  bool offload_param = false;
  std::optional<std::int64_t> prefetch_numel = {};
  std::vector<layout::ParameterSpec> specs = {};  // empty: DefaultSpecs()
  std::chrono::milliseconds timeout{20'000};
};

layout::ParameterSpec Spec(const std::string& name, std::vector<std::int64_t> shape,
                           bool trainable = true);

// Seven parameters of different sizes; "empty" has no elements and "frozen" is not trained.
std::vector<layout::ParameterSpec> DefaultSpecs();

class World {
 public:
  World(comm::Comm& comm, const WorldOptions& options);

  comm::Comm& comm;
  plan::Plan plan;
  plan::WindowPlan window_plan;
  memory::Memory memory{memory::Place::kHost};
  memory::Ledger& ledger = memory.ledger();
  std::unique_ptr<comm::TieredWindow> window;
  std::unique_ptr<ParameterStore> store;
  std::vector<at::Tensor> tensors;  // by parameter

  int rank() const { return comm.rank(); }
  int count() const { return static_cast<int>(tensors.size()); }
  // What parameter `p` holds at the start, plus `add`. Exact in 16 bits for a small `add`.
  at::Tensor Expected(int p, double add = 0) const;
  int UnitOf(int p) const;
  // Publishes what this rank holds, with `add` added to every element:
  // what a step of the optimizer does. `before_publish` runs once.
  void Update(float add, const std::function<void()>& before_publish = {});
  // Uses every parameter once, so that what was gathered before has given way.
  void Sweep();
  std::int64_t Slots() const;
  std::int64_t Buckets() const;
};

// Every way to place weights and state on the tiers.
std::vector<WorldOptions> EachTier(const WorldOptions& options);

// The weights on every rank; an error on one ends the others and is rethrown.
void OnWorlds(const WorldOptions& options, const std::function<void(World&)>& body);

using testsupport::LoggedLines;
using testsupport::MessageOf;
using testsupport::Sleep;

}  // namespace ullage::params
