// Optimizers on slices do what they would do on whole parameters, at every stage.
#include "optim/slice_optimizer.h"

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

TEST(SliceOptimizer, AUsersWriteSetsTheMasterWhereTheValueChanged) {
  for (int stage = 0; stage <= 3; ++stage) {
    OnTrainers(
        {.world_size = 2,
         .stage = stage,
         .precision = Precision::kBFloat16,
         .optimizer = {.type = OptimizerType::kSgd, .lr = 0.1}},
        [](Trainer& trainer) {
          Reference reference(trainer);
          {
            at::NoGradGuard no_grad;
            trainer.weights[1].slice(0, 100, 600).fill_(0.3);
            trainer.weights[5].mul_(1);  // rewrites what was there
          }
          reference.master(1).slice(0, 100, 600).fill_(static_cast<float>(at::BFloat16(0.3f)));
          ExpectLike(trainer, reference);  // elsewhere the master keeps its digits
          trainer.Step(1);
          reference.Step(1);
          ExpectLike(trainer, reference);
        });
  }
}

TEST(SliceOptimizer, TheMasterOfFp32LiesInTheWeights) {
  OnTrainers({.world_size = 2, .stage = 2}, [](Trainer& trainer) {
    for (int unit = 0; unit < static_cast<int>(trainer.plan.units.size()); ++unit) {
      const std::byte* own =
          trainer.plan.units[unit].unit.trainable ? trainer.store->OwnWeights(unit) : nullptr;
      EXPECT_EQ(reinterpret_cast<std::byte*>(trainer.optimizer->Master(unit)), own);
    }
  });
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
