// Gradients reach sums on the host through a small ring, whatever their sizes. Here the device is
// the host; what a device does besides is compared there (scripts/gpu_check.sh).
#include "grads/landing.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <vector>

namespace ullage::grads {
namespace {

// Numbers of elements: one, odd ones, more than the rings.
constexpr std::int64_t kSizes[] = {1, 7, 512, 300, 5000, 64, 20001, 128, 3};

at::Tensor GradientOf(std::int64_t numel, int number) {
  return at::arange(numel, at::kFloat).mul_(0.25f).sub_(3 * number).to(at::kBFloat16);
}

struct World {
  explicit World(std::int64_t ring_bytes)
      : ring(memory.Allocate(memory::Tag::kBuckets, {ring_bytes, 0})),
        landing(memory, /*bytes=*/1 << 17, ring) {}

  memory::Memory memory{memory::Place::kHost};
  memory::Buffer ring;
  Landing landing;
};

TEST(Landing, StoresGradientsThatAreLargerThanTheRing) {
  for (const std::int64_t ring_bytes : {512, 1536, 1 << 16}) {
    World world(ring_bytes);
    std::vector<at::Tensor> gradients, stored;
    for (int round = 0; round < 3; ++round) {
      for (const std::int64_t numel : kSizes) {
        gradients.push_back(GradientOf(numel, round));
        stored.push_back(at::zeros_like(gradients.back()));
        world.landing.Store(gradients.back(),
                            static_cast<std::byte*>(stored.back().mutable_data_ptr()));
      }
    }
    world.landing.Finish();
    for (std::size_t i = 0; i < stored.size(); ++i) {
      EXPECT_TRUE(at::equal(stored[i], gradients[i])) << i;
    }
  }
}

TEST(Landing, TheFirstGradientReplacesAndTheLastTellsTheSquares) {
  World world(4096);
  constexpr int kPasses = 3;
  std::vector<at::Tensor> sums, expected;
  std::mutex mutex;
  std::vector<double> squares(std::size(kSizes), -1);
  for (const std::int64_t numel : kSizes) {
    sums.push_back(at::full({numel}, NAN));
    expected.push_back(at::zeros({numel}));
  }
  for (int pass = 0; pass < kPasses; ++pass) {
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const at::Tensor gradient = GradientOf(kSizes[i], pass);
      expected[i] += gradient;
      Landing::Done done;
      if (pass + 1 == kPasses) {
        done = [&, i](const kernels::SquareSum& result) {
          EXPECT_LT(result.first_non_finite, 0);
          const std::lock_guard lock(mutex);
          squares[i] = result.sum.ToDouble();
        };
      }
      world.landing.Add(gradient, DType::kBFloat16, sums[i].mutable_data_ptr<float>(), pass == 0,
                        done);
    }
  }
  world.landing.Finish();
  for (std::size_t i = 0; i < sums.size(); ++i) {
    EXPECT_TRUE(at::equal(sums[i], expected[i])) << i;
    kernels::SquareSum whole;
    kernels::AddSumOfSquares(DType::kFloat32, sums[i].const_data_ptr(), sums[i].numel(), whole);
    EXPECT_EQ(squares[i], whole.sum.ToDouble()) << i;
  }
}

TEST(Landing, TellsOfWhatIsNotFinite) {
  World world(4096);
  at::Tensor gradient = GradientOf(40000, 0);
  gradient[31234] = std::numeric_limits<float>::infinity();
  at::Tensor sums = at::zeros({40000});
  std::int64_t found = -1;
  world.landing.Add(gradient, DType::kBFloat16, sums.mutable_data_ptr<float>(), false,
                    [&](const kernels::SquareSum& squares) { found = squares.first_non_finite; });
  world.landing.Finish();
  EXPECT_GE(found, 0);
}

}  // namespace
}  // namespace ullage::grads
