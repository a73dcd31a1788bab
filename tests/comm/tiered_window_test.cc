// What ranks share, where operators run on the host.
#include "comm/tiered_window.h"

#include <gtest/gtest.h>

#include <cstring>

#include "comm/ranks.h"

namespace ullage::comm {
namespace {

// Two units of 64 fp32 weights over two ranks, sliced, the second at home on the host.
plan::WindowPlan SmallPlan() {
  Settings settings;
  settings.train_micro_batch_size_per_gpu = 1;
  settings.zero.stage = 3;
  settings.zero.param_persistence_threshold = 0;
  settings.ullage.unit_size = 1;
  return plan::MakeWindowPlan(
      plan::MakePlan(settings, {{"a", {128}, 128}, {"b", {128}, 128}}, {.world_size = 2}));
}

TEST(TieredWindow, ReadersGetWhatTheOwnerWroteBeforeItRaisedTheWord) {
  const plan::WindowPlan plan = SmallPlan();
  OnThreads(2, [&](Comm& comm) {
    TieredWindow window(comm, plan, c10::Device(c10::kCPU));
    const int mine = comm.rank(), other = 1 - mine;
    const plan::SharedPlace place = plan.weights[1];
    std::memset(window.At(place), 7 + mine, 256);
    window.SignalAfter(torchx::Queue(), plan.version(1), 1);
    std::byte got[256] = {};
    window.Read(other, plan.version(1), 1, place, got, 256, torchx::Queue(), "a unit");
    EXPECT_EQ(got[0], std::byte(7 + other));
    EXPECT_EQ(got[255], std::byte(7 + other));
    EXPECT_EQ(*window.Peer(other, place + 255), std::byte(7 + other));
    EXPECT_EQ(window.Peer(mine, place), window.At(place));
    EXPECT_EQ(window.Peek(other, plan.version(0)), 0u);
    comm.Barrier(1);
  });
}

TEST(TieredWindow, ADryRunHoldsNoMemoryAndWaitsForNobody) {
  const plan::WindowPlan plan = SmallPlan();
  const auto comm = MakeFakeComm(0, 2);
  TieredWindow window(*comm, plan, c10::Device(c10::kMeta));
  EXPECT_EQ(window.At(plan.weights[0]), nullptr);
  EXPECT_EQ(window.Peer(1, plan.weights[0]), nullptr);
  window.Read(1, plan.version(0), 9, plan.weights[0], nullptr, 256, torchx::Queue(), "a unit");
}

}  // namespace
}  // namespace ullage::comm
