// Decoders on weights whose bytes are there only while an operator uses them.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <set>
#include <vector>

#include "tiny_llama.h"
#include "torchx/fake_storage.h"

namespace ullage::models {
namespace {

using at::Tensor;

std::vector<Tensor> DistinctParameters(Model& model) {
  std::vector<Tensor> distinct;
  std::set<const void*> seen;
  for (const auto& parameter : model.module().named_parameters()) {
    if (!seen.insert(parameter.value().unsafeGetTensorImpl()).second) continue;
    distinct.push_back(parameter.value());
  }
  return distinct;
}

TEST(ManagedWeights, OfADecoderGiveTheSameBitsOneWeightAtATime) {
  for (const bool tied : {false, true}) {
    for (const bool recompute : {false, true}) {
      const auto plain = TinyLlama({{"tie_word_embeddings", tied}});
      const auto managed = TinyLlama({{"tie_word_embeddings", tied}});
      const std::vector<Tensor> expected = DistinctParameters(*plain);
      const std::vector<Tensor> parameters = DistinctParameters(*managed);
      const torchx::FakeStorages storages = torchx::Manage(parameters);
      managed->set_recompute(recompute);
      const Batch batch = TinyBatch(2, 7);
      const Tensor loss = plain->Loss(batch).loss;
      torchx::FakeStorage::ResetPeak();
      const Tensor managed_loss = managed->Loss(batch).loss;
      EXPECT_EQ(loss.item<float>(), managed_loss.item<float>());
      loss.backward();
      managed_loss.backward();
      EXPECT_EQ(torchx::FakeStorage::Peak(), 1);
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        EXPECT_TRUE(torchx::BitwiseEqual(parameters[i].grad(), expected[i].grad())) << i;
        EXPECT_EQ(storages[i]->pins(), 0) << i;
        EXPECT_EQ(storages[i]->writes(), 0) << i;
      }
    }
  }
}

}  // namespace
}  // namespace ullage::models
