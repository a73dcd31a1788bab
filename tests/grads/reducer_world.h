// One rank's gradient reducer over leaves whose gradients tests choose.
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
#include "grads/gradient_reducer.h"
#include "support/logged_lines.h"
#include "ullage/settings.h"

namespace ullage::grads {

struct WorldOptions {
  int world_size = 1;
  int stage = 3;
  std::int64_t unit_bytes = 1;  // each parameter a unit of its own
  std::int64_t bucket_numel = 1'000'000;
  Precision precision = Precision::kFloat32;
  std::int64_t persistence_threshold = 0;
  int accumulation_steps = 2;                    // 1: one rank keeps gradients as they come
  std::optional<double> offload_optimizer = {};  // the ratio
  bool hosts_apart = false;                      // as if every rank were on a host of its own
  std::chrono::milliseconds timeout{20'000};
};

class World {
 public:
  World(comm::Comm& comm, const WorldOptions& options);
  ~World();

  comm::Comm& comm;
  plan::Plan plan;
  plan::WindowPlan window_plan;
  memory::Memory memory{memory::Place::kHost};
  memory::Ledger& ledger = memory.ledger();
  std::unique_ptr<comm::TieredWindow> window;
  std::unique_ptr<GradientReducer> reducer;
  std::vector<at::Tensor> leaves;  // by parameter; the last but one has no elements

  int rank() const { return comm.rank(); }
  int count() const { return static_cast<int>(leaves.size()); }
  // A random gradient that depends on parameter, pass and rank alone.
  at::Tensor Gradient(int p, int pass, int rank) const;
  // A loss whose gradients are this rank's of `pass`, for `parameters`. The gradient of the last
  // of them arrives first.
  at::Tensor Loss(int pass, const std::vector<int>& parameters) const;
  // All trainable parameters, from the first: gradients arrive from the last one on.
  std::vector<int> All() const;
  // Bytes of gradients on their way, now or at most.
  std::int64_t Buckets(bool peak = false) const;

  // The owned part of the sums against `expected`, fp32, by parameter; bit for bit. What is kept
  // in 16 bit is widened.
  void ExpectSums(const std::vector<at::Tensor>& expected) const;
  // Zeros of the parameters' shapes, in fp32.
  std::vector<at::Tensor> Zeros() const;
};

// The sums after `passes` passes in which every rank gave all: in the order (pass, rank).
std::vector<at::Tensor> SumOfPasses(
    const World& world, int passes,
    const std::function<bool(int p, int pass, int rank)>& gives = [](int, int, int) {
      return true;
    });

void OnWorlds(const WorldOptions& options, const std::function<void(World&)>& body);

using testsupport::LoggedLines;
using testsupport::MessageOf;
using testsupport::Sleep;

}  // namespace ullage::grads
