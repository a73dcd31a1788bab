// State on the device, on the host, or some here and some there: the bits are those of whole
// parameters, and the bytes those of the plan.
#include "optim/slice_optimizer.h"
#include "optim/trainer.h"

namespace ullage::optim {
namespace {

const std::vector<Precision> kPrecisions = {Precision::kFloat32, Precision::kBFloat16,
                                            Precision::kFloat16};

void ForEachTrainer(const std::function<void(const TrainerOptions&)>& body,
                    const TrainerOptions& base = {}) {
  for (const int world_size : {1, 2}) {
    for (const int stage : {1, 3}) {
      TrainerOptions options = base;
      options.world_size = world_size;
      options.stage = stage;
      for (const TrainerOptions& tier : EachTier(options)) body(tier);
    }
  }
}

TEST(Tiers, AdamWIsThatOfWholeParametersOnEveryTier) {
  for (const Precision precision : kPrecisions) {
    for (const std::int64_t threshold : {0, 500}) {
      if (threshold > 0 && precision != Precision::kBFloat16) continue;
      ForEachTrainer(
          [](const TrainerOptions& options) {
            OnTrainers(options, [](Trainer& trainer) {
              Reference reference(trainer);
              ExpectLike(trainer, reference);
              for (int step = 1; step <= 2; ++step) {
                trainer.Step(step);
                reference.Step(step);
                ExpectLike(trainer, reference);
              }
            });
          },
          {.persistence_threshold = threshold,
           .precision = precision,
           .optimizer = {.lr = 0.01, .weight_decay = 0.1}});
    }
  }
}

TEST(Tiers, SgdWithMomentumIsThatOfWholeParametersOnEveryTier) {
  ForEachTrainer(
      [](const TrainerOptions& options) {
        OnTrainers(options, [](Trainer& trainer) {
          Reference reference(trainer);
          for (int step = 1; step <= 2; ++step) {
            trainer.Step(step);
            reference.Step(step);
          }
          ExpectLike(trainer, reference);
        });
      },
      {.precision = Precision::kBFloat16,
       .optimizer = {.type = OptimizerType::kSgd, .lr = 0.1, .momentum = 0.9, .nesterov = true}});
}

TEST(Tiers, HoldWhatThePlanSaysAndADryRunCountsTheSame) {
  for (const Precision precision : {Precision::kFloat32, Precision::kBFloat16}) {
    for (const int accumulation_steps : {1, 2}) {
      for (const std::optional<std::int64_t> prefetch :
           {std::optional<std::int64_t>(), std::optional<std::int64_t>(500)}) {
        if (prefetch && accumulation_steps > 1) continue;
        ForEachTrainer(
            [](const TrainerOptions& options) {
              constexpr plan::Tier kTiers[] = {plan::Tier::kDevice, plan::Tier::kHost,
                                               plan::Tier::kDisk};
              std::vector<plan::TagBytes> peaks(3 * static_cast<std::size_t>(options.world_size));
              const auto peak_of = [&](int rank, plan::Tier tier) -> plan::TagBytes& {
                return peaks[3 * static_cast<std::size_t>(rank) + static_cast<std::size_t>(tier)];
              };
              OnTrainers(options, [&](Trainer& trainer) {
                for (int step = 1; step <= 2; ++step) trainer.Step(step);
                const int rank = trainer.comm.rank();
                for (const plan::Tier tier : kTiers) {
                  EXPECT_EQ(trainer.ledger.now(tier), trainer.plan.BytesOfRank(rank, tier));
                  plan::TagBytes peak = trainer.ledger.peak(tier);
                  peak[static_cast<std::size_t>(plan::Tag::kData)] =
                      0;  // pieces of state asked for
                  EXPECT_EQ(peak, trainer.ledger.now(tier));
                  peak_of(rank, tier) = peak;
                }
              });
              for (int rank = 0; rank < options.world_size; ++rank) {
                const auto comm = comm::MakeFakeComm(rank, options.world_size);
                Trainer dry(*comm, options, /*dry=*/true);
                for (int step = 1; step <= 2; ++step) dry.Step(step);
                for (const plan::Tier tier : kTiers) {
                  EXPECT_EQ(dry.ledger.peak(tier), peak_of(rank, tier));
                }
              }
            },
            {.persistence_threshold = 400,
             .precision = precision,
             .prefetch_numel = prefetch,
             .accumulation_steps = accumulation_steps});
      }
    }
  }
}

TEST(Tiers, AUsersWriteSetsTheMasterWhereTheValueChanged) {
  for (const Precision precision : kPrecisions) {
    ForEachTrainer(
        [](const TrainerOptions& options) {
          OnTrainers(options, [](Trainer& trainer) {
            Reference reference(trainer);
            const at::ScalarType dtype = trainer.weights[1].scalar_type();
            {
              at::NoGradGuard no_grad;
              trainer.weights[1].slice(0, 100, 600).fill_(0.3);
              trainer.weights[5].mul_(1);  // rewrites what was there
            }
            reference.master(1).slice(0, 100, 600).fill_(at::full({}, 0.3, dtype).item<float>());
            ExpectLike(trainer, reference);  // elsewhere the master keeps its digits
            trainer.Step(1);
            reference.Step(1);
            ExpectLike(trainer, reference);
          });
        },
        {.precision = precision, .optimizer = {.type = OptimizerType::kSgd, .lr = 0.1}});
  }
}

TEST(Tiers, AfterAWriteUnchangedElementsHaveTheirFp32ValuesStill) {
  for (const Precision precision : {Precision::kBFloat16, Precision::kFloat16}) {
    ForEachTrainer(
        [](const TrainerOptions& options) {
          OnTrainers(options, [](Trainer& trainer) {
            const Trainer::Held before = trainer.Master(0);
            {
              at::NoGradGuard no_grad;
              at::Tensor mask = at::zeros({900}, at::kBool);
              mask.slice(0, 0, 900, 7).fill_(true);
              trainer.weights[0].masked_fill_(mask, 2);
            }
            const Trainer::Held after = trainer.Master(0);
            if (!before.values.defined()) return;
            std::int64_t finer = 0;
            for (std::int64_t i = 0; i < after.values.numel(); ++i) {
              const float was = before.values[i].item<float>(), is = after.values[i].item<float>();
              EXPECT_EQ(is, (before.first + i) % 7 == 0 ? 2.0f : was) << i;
              finer += is != at::full({}, is, trainer.weights[0].scalar_type()).item<float>();
            }
            EXPECT_GT(finer, after.values.numel() / 2);  // they have digits to lose
          });
        },
        {.precision = precision});
  }
}

TEST(Tiers, AFailedWriteLeavesTheMasterAndTheNextOneIsRight) {
  ForEachTrainer(
      [](const TrainerOptions& options) {
        OnTrainers(options, [](Trainer& trainer) {
          Reference reference(trainer);
          at::NoGradGuard no_grad;
          EXPECT_THROW(trainer.weights[1].add_(at::ones({3})), c10::Error);
          ExpectLike(trainer, reference);
          trainer.weights[1].slice(0, 5, 650).fill_(50);
          reference.master(1).slice(0, 5, 650).fill_(50);
          ExpectLike(trainer, reference);
        });
      },
      {.precision = Precision::kBFloat16});
}

TEST(Tiers, PrefetchChangesNothing) {
  for (const Precision precision : {Precision::kFloat32, Precision::kBFloat16}) {
    for (const std::int64_t prefetch : {500, 1'000'000}) {
      ForEachTrainer(
          [](const TrainerOptions& options) {
            OnTrainers(options, [&options](Trainer& trainer) {
              Reference reference(trainer);
              for (int step = 1; step <= 3; ++step) {
                trainer.Step(step);
                reference.Step(step);
              }
              ExpectLike(trainer, reference);
              // With other ranks, or while host threads update, a unit may not be ready yet when it
              // could be gathered ahead: how many are is a matter of timing then.
              if (trainer.plan.ring_bytes > 0 && options.world_size == 1 &&
                  !options.offload_optimizer) {
                EXPECT_GT(trainer.store->statistics().ahead, 0);
              }
            });
          },
          {.precision = precision,
           .optimizer = {.lr = 0.01, .weight_decay = 0.1},
           .prefetch_numel = prefetch});
    }
  }
}

}  // namespace
}  // namespace ullage::optim
