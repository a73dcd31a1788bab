// Ranks that do different things end with an error instead of waiting for ever.
#include <atomic>

#include "grads/reducer_world.h"
#include "ullage/error.h"

namespace ullage::grads {
namespace {

constexpr std::chrono::seconds kTimeout{2};

TEST(Divergence, ADifferentNumberOfBackwardsEndsEveryRankWithinTheTimeout) {
  for (const bool hosts_apart : {false, true}) {
    std::atomic<int> comm_errors = 0;
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THROW(OnWorlds({.world_size = 2, .hosts_apart = hosts_apart, .timeout = kTimeout},
                          [&](World& world) {
                            try {
                              world.reducer->Backward(world.Loss(0, world.All()), 1, false);
                              if (world.rank() == 0) {
                                world.reducer->Backward(world.Loss(1, world.All()), 1, false);
                              }
                              world.comm.Barrier(7);  // what a step begins with
                            } catch (const CommError&) {
                              ++comm_errors;
                              throw;
                            }
                          }),
                 CommError);
    EXPECT_EQ(comm_errors, 2);
    EXPECT_LT(std::chrono::steady_clock::now() - start, 4 * kTimeout);
  }
}

TEST(Divergence, ARankThatThrowsInItsBackwardEndsTheOthers) {
  std::atomic<int> comm_errors = 0;
  EXPECT_THROW(
      OnWorlds({.world_size = 4, .timeout = std::chrono::seconds(20)},
               [&](World& world) {
                 if (world.rank() == 2) {
                   world.leaves[3].register_hook([](const at::Tensor&) -> at::Tensor {
                     throw std::runtime_error("the user's hook");
                   });
                 }
                 try {
                   world.reducer->Backward(world.Loss(0, world.All()), 1, false);
                 } catch (const CommError& error) {
                   EXPECT_NE(std::string(error.what()).find("the user's hook"), std::string::npos)
                       << error.what();
                   ++comm_errors;
                   throw;
                 }
               }),
      std::exception);
  EXPECT_EQ(comm_errors, 3);
}

}  // namespace
}  // namespace ullage::grads
