// Optimizers on slices do what they would do on whole parameters, at every stage.
#include "optim/slice_optimizer.h"

#include <cstring>

#include "optim/trainer.h"

namespace ullage::optim {
namespace {

void ExpectLikeTheReferenceEverywhere(const OptimizerSettings& optimizer) {
  for (const auto precision : {Precision::kFloat32, Precision::kBFloat16, Precision::kFloat16}) {
    for (const int world_size : {1, 2, 4}) {
      if (precision == Precision::kFloat16 && world_size != 2) continue;
      for (int stage = 0; stage <= 3; ++stage) {
        if (world_size == 1 && stage > 0) continue;  // nothing is sliced at any stage
        for (const std::int64_t threshold : {0, 500}) {
          if (threshold > 0 && stage < 3) continue;
          OnTrainers({.world_size = world_size,
                      .stage = stage,
                      .persistence_threshold = threshold,
                      .precision = precision,
                      .optimizer = optimizer,
                      .groups = {{.pattern = "^head", .lr_factor = 0.5}}},
                     [](Trainer& trainer) {
                       Reference reference(trainer);
                       ExpectLike(trainer, reference);
                       for (int step = 1; step <= 2; ++step) {
                         trainer.Step(step);
                         reference.Step(step);
                         ExpectLike(trainer, reference);
                       }
                     });
        }
      }
    }
  }
}

TEST(SliceOptimizer, AdamWIsThatOfWholeParameters) {
  ExpectLikeTheReferenceEverywhere({.lr = 0.01, .weight_decay = 0.1});
}

TEST(SliceOptimizer, AdamWithL2IsThatOfWholeParameters) {
  ExpectLikeTheReferenceEverywhere(
      {.lr = 0.01, .weight_decay = 0.1, .bias_correction = false, .adam_w_mode = false});
}

TEST(SliceOptimizer, SgdIsThatOfWholeParameters) {
  ExpectLikeTheReferenceEverywhere({.type = OptimizerType::kSgd, .lr = 0.1});
}

TEST(SliceOptimizer, SgdWithMomentumIsThatOfWholeParameters) {
  ExpectLikeTheReferenceEverywhere({.type = OptimizerType::kSgd,
                                    .lr = 0.1,
                                    .weight_decay = 0.01,
                                    .momentum = 0.9,
                                    .nesterov = true});
}

TEST(SliceOptimizer, UnitSizesChangeNothing) {
  for (const int stage : {0, 3}) {
    for (const std::int64_t unit_bytes : {1, 3000, 1 << 20}) {
      OnTrainers({.world_size = 2,
                  .stage = stage,
                  .unit_bytes = unit_bytes,
                  .precision = Precision::kBFloat16,
                  .optimizer = {.lr = 0.01, .weight_decay = 0.1}},
                 [](Trainer& trainer) {
                   Reference reference(trainer);
                   for (int step = 1; step <= 2; ++step) {
                     trainer.Step(step);
                     reference.Step(step);
                   }
                   ExpectLike(trainer, reference);
                 });
    }
  }
}

TEST(SliceOptimizer, TheMasterOfFp32LiesInTheWeights) {
  OnTrainers({.world_size = 2, .stage = 2}, [](Trainer& trainer) {
    for (int unit = 0; unit < static_cast<int>(trainer.plan.units.size()); ++unit) {
      std::vector<float> master(static_cast<std::size_t>(trainer.plan.HeldNumel(unit)));
      trainer.optimizer->LoadMaster(unit, 0, master);
      EXPECT_EQ(std::memcmp(master.data(), trainer.store->Home(unit), 4 * master.size()), 0);
      trainer.optimizer->StoreMaster(unit, 3, std::vector<float>{5.5f});
      EXPECT_EQ(reinterpret_cast<const float*>(trainer.store->Home(unit))[3], 5.5f);
    }
    const auto tag = static_cast<std::size_t>(memory::Tag::kMaster);
    EXPECT_EQ(trainer.ledger.now()[tag], 0);
  });
}

TEST(SliceOptimizer, KeepsEveryDigitOfWhatIsStored) {
  for (const Precision precision : {Precision::kBFloat16, Precision::kFloat16}) {
    OnTrainers({.world_size = 2, .stage = 3, .precision = precision}, [](Trainer& trainer) {
      for (int p = 0; p < trainer.count(); ++p) {
        const Trainer::Held held = trainer.Master(p);
        if (!held.values.defined()) continue;
        at::Tensor start = trainer.Start(p).narrow(0, held.first, held.values.numel());
        // Frozen weights have no more than their own digits.
        if (!trainer.IsTrained(p)) {
          start = start.to(trainer.weights[p].scalar_type()).to(at::kFloat);
        }
        EXPECT_TRUE(at::equal(held.values, start)) << trainer.plan.parameters[p].name;
      }
    });
  }
}

TEST(SliceOptimizer, HoldsWhatThePlanSays) {
  for (const auto precision : {Precision::kFloat32, Precision::kBFloat16}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int world_size : {1, 2, 4}) {
        OnTrainers({.world_size = world_size, .stage = stage, .precision = precision},
                   [](Trainer& trainer) {
                     EXPECT_EQ(trainer.ledger.now(), trainer.plan.BytesOfRank(trainer.comm.rank()));
                     trainer.Step(1);
                     EXPECT_EQ(trainer.ledger.now(), trainer.plan.BytesOfRank(trainer.comm.rank()));
                     EXPECT_EQ(trainer.ledger.peak(), trainer.ledger.now());
                     trainer.optimizer.reset();
                     trainer.norm.reset();
                     trainer.reducer.reset();
                     trainer.store.reset();
                     EXPECT_EQ(trainer.ledger.now(), memory::TagBytes{});
                   });
      }
    }
  }
}

}  // namespace
}  // namespace ullage::optim
