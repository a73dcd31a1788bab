// Gradients that wait for each other reach their targets as if each had gone alone.
#include "grads/gradient_batch.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstring>
#include <vector>

#include "kernels/accumulate.h"

namespace ullage::grads {
namespace {

using kernels::device::ArrayPart;

// Does on the host what the device's kernels do, and counts.
struct Host {
  GradientBatch batch{[this](const GradientBatch::Work& work) {
    ++runs;
    for (const ArrayPart& part : work.copies) {
      std::memcpy(part.out, part.in, static_cast<std::size_t>(part.n * ElementBytes(part.dtype)));
    }
    for (const ArrayPart& part : work.additions) {
      kernels::AddToFloat(part.dtype, part.in, static_cast<float*>(part.out), part.n);
    }
  }};
  int runs = 0;
};

float* Data(at::Tensor& tensor) {
  return tensor.mutable_data_ptr<float>();
}

TEST(GradientBatch, ManySmallOnesAreOneRun) {
  Host host;
  std::vector<at::Tensor> gradients, copies, sums;
  for (int i = 0; i < 200; ++i) {
    gradients.push_back(torch::rand({i + 1}));
    copies.push_back(torch::zeros({i + 1}));
    sums.push_back(torch::full({i + 1}, 2.0));
    host.batch.Copy(gradients.back(), DType::kFloat32, Data(copies.back()));
    host.batch.Add(gradients.back(), DType::kFloat32, Data(sums.back()));
  }
  EXPECT_EQ(host.runs, 0);
  host.batch.Flush();
  EXPECT_EQ(host.runs, 1);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    EXPECT_TRUE(at::equal(copies[i], gradients[i]));
    EXPECT_TRUE(at::equal(sums[i], gradients[i] + 2));
  }
  host.batch.Flush();
  EXPECT_EQ(host.runs, 1);
}

TEST(GradientBatch, ForgetsWhatIsDropped) {
  Host host;
  at::Tensor target = torch::zeros({10});
  host.batch.Copy(torch::rand({10}), DType::kFloat32, Data(target));
  host.batch.Drop();
  host.batch.Flush();
  EXPECT_EQ(host.runs, 0);
  EXPECT_TRUE(at::equal(target, torch::zeros({10})));
}

TEST(GradientBatch, HoldsGradientsUntilTheyHaveRun) {
  Host host;
  at::Tensor target = torch::zeros({10});
  at::Tensor gradient = torch::rand({10});
  const at::Tensor values = gradient.clone();
  const c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> alive(
      gradient.getIntrusivePtr());
  host.batch.Copy(gradient, DType::kFloat32, Data(target));
  gradient.reset();
  EXPECT_FALSE(alive.expired());
  host.batch.Flush();
  EXPECT_TRUE(alive.expired());
  EXPECT_TRUE(at::equal(target, values));
}

TEST(GradientBatch, SixteenBitGradientsKeepTheirBitsOrAreAddedInFp32) {
  Host host;
  const at::Tensor gradient = torch::rand({100}).to(at::kBFloat16);
  at::Tensor copy = torch::zeros({100}, at::kBFloat16), sum = torch::full({100}, 0.1);
  host.batch.Copy(gradient, DType::kBFloat16, copy.mutable_data_ptr());
  host.batch.Add(gradient, DType::kBFloat16, Data(sum));
  host.batch.Flush();
  EXPECT_TRUE(at::equal(copy, gradient));
  EXPECT_TRUE(at::equal(sum, torch::full({100}, 0.1) + gradient.to(at::kFloat)));
}

TEST(GradientBatch, ASecondGradientOfTheSameSumsComesAfterTheFirst) {
  Host host;
  at::Tensor sum = torch::full({3}, 0.1);
  const at::Tensor one = torch::rand({3}), two = torch::rand({3});
  host.batch.Add(one, DType::kFloat32, Data(sum));
  host.batch.Add(two, DType::kFloat32, Data(sum));
  EXPECT_EQ(host.runs, 1);
  host.batch.Flush();
  EXPECT_EQ(host.runs, 2);
  EXPECT_TRUE(at::equal(sum, torch::full({3}, 0.1) + one + two));
}

TEST(GradientBatch, LargeOnesGoAtOnceAndHoldNothingUp) {
  Host host;
  const at::Tensor small = torch::rand({8}), large = torch::rand({(2 << 20) + 1});
  at::Tensor small_copy = torch::zeros({8}), large_copy = torch::zeros_like(large);
  host.batch.Copy(small, DType::kFloat32, Data(small_copy));
  host.batch.Copy(large, DType::kFloat32, Data(large_copy));
  EXPECT_EQ(host.runs, 1);
  EXPECT_TRUE(at::equal(large_copy, large));
  EXPECT_TRUE(at::equal(small_copy, torch::zeros({8})));
  EXPECT_EQ(large.use_count(), 1);
  host.batch.Flush();
  EXPECT_TRUE(at::equal(small_copy, small));
}

TEST(GradientBatch, HoldsNoMoreThanItsLimit) {
  Host host;
  constexpr std::int64_t kNumel = GradientBatch::kSmallBytes / 4;
  constexpr int kFit = GradientBatch::kHeldBytes / GradientBatch::kSmallBytes;
  std::vector<at::Tensor> targets;
  std::vector<at::Tensor> gradients;
  for (int i = 0; i <= kFit; ++i) {
    EXPECT_EQ(host.runs, 0) << i;
    gradients.push_back(torch::full({kNumel}, static_cast<double>(i)));
    targets.push_back(torch::full({kNumel}, -1.0));
    host.batch.Copy(gradients.back(), DType::kFloat32, Data(targets.back()));
  }
  EXPECT_EQ(host.runs, 1);
  EXPECT_EQ(gradients[0].use_count(), 1);
  for (int i = 0; i < kFit; ++i) EXPECT_EQ(targets[static_cast<std::size_t>(i)][7].item<int>(), i);
  EXPECT_EQ(targets.back()[7].item<float>(), -1);
}

}  // namespace
}  // namespace ullage::grads
