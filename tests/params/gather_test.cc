// Weights come where operators need them, out of a ring of fixed size.
#include <algorithm>
#include <random>

#include "comm/comm.h"
#include "params/model_world.h"
#include "support/run_ranks.h"
#include "ullage/error.h"

namespace ullage::params {
namespace {

const std::vector<std::int64_t> kUnitBytes = {1, 2048, 1 << 20};

TEST(Gather, EveryParameterHasItsBytesWhateverTheOrderOfUse) {
  for (const int world_size : {1, 2, 4}) {
    for (const std::int64_t unit_bytes : kUnitBytes) {
      for (const auto precision :
           {Precision::kFloat32, Precision::kBFloat16, Precision::kFloat16}) {
        OnWorlds({.world_size = world_size, .unit_bytes = unit_bytes, .precision = precision},
                 [](World& world) {
                   std::mt19937 random(static_cast<unsigned>(world.rank()));
                   std::vector<int> order;
                   for (int p = 0; p < world.count(); ++p) order.push_back(p);
                   for (int round = 0; round < 3; ++round) {
                     std::shuffle(order.begin(), order.end(), random);
                     for (const int p : order) {
                       const at::Tensor copy = world.tensors[p].detach().clone();
                       EXPECT_EQ(copy.scalar_type(), world.Expected(p).scalar_type());
                       EXPECT_TRUE(at::equal(copy, world.Expected(p)))
                           << world.plan.parameters[p].name;
                     }
                   }
                   if (world.plan.world_size == 1) {
                     EXPECT_EQ(world.store->statistics().gathers, 0);
                   }
                 });
      }
    }
  }
}

TEST(Gather, StaysWithinTheRingHoweverManyUnitsThereAre) {
  OnWorlds({.world_size = 2}, [](World& world) {
    std::int64_t all = 0;
    for (const plan::UnitPlan& unit : world.plan.units) {
      all += unit.unit.padded_numel(2) * ElementBytes(unit.unit.dtype);
    }
    ASSERT_LT(world.plan.ring_bytes, all);
    for (int round = 0; round < 4; ++round) {
      world.Sweep();
      EXPECT_EQ(world.Slots(), world.plan.ring_bytes);
    }
    const auto slots = static_cast<std::size_t>(memory::Tag::kSlots);
    EXPECT_EQ(world.ledger.peak()[slots], world.plan.ring_bytes);
    EXPECT_GT(world.store->statistics().gathers, static_cast<int>(world.plan.units.size()));
    EXPECT_EQ(world.store->statistics().overflows, 0);
  });
}

TEST(Gather, AUnitThatIsStillThereIsNotReadAgain) {
  OnWorlds({.world_size = 2}, [](World& world) {
    const std::int64_t before = world.store->statistics().gathers;
    const std::int64_t bytes = world.store->statistics().gathered_bytes;
    for (int i = 0; i < 5; ++i) (void)world.tensors[1].sum();
    EXPECT_EQ(world.store->statistics().gathers - before, 1);
    EXPECT_EQ(world.store->statistics().gathered_bytes - bytes, 256 * 4);
  });
}

TEST(Gather, AnOperatorThatNeedsMoreThanTheRingOverflowsWarnsOnceAndFrees) {
  const LoggedLines logged;
  OnWorlds({.world_size = 2}, [](World& world) {
    for (int round = 0; round < 2; ++round) {
      std::vector<at::Tensor> flat, expected;
      for (int p = 0; p < world.count(); ++p) {
        flat.push_back(world.tensors[p].detach().flatten());
        expected.push_back(world.Expected(p).flatten());
      }
      EXPECT_TRUE(at::equal(at::cat(flat), at::cat(expected)));
      EXPECT_GT(world.store->statistics().overflows, 0);
      EXPECT_EQ(world.Slots(), world.plan.ring_bytes);
      const auto slots = static_cast<std::size_t>(memory::Tag::kSlots);
      EXPECT_GT(world.ledger.peak()[slots], world.plan.ring_bytes);
      world.Sweep();
    }
  });
  EXPECT_EQ(logged.Count("needs more weights than the ring"), 2);  // each rank once
}

TEST(Gather, NeedsNothingOfThePeersThreads) {
  OnWorlds({.world_size = 2}, [](World& world) {
    if (world.rank() == 1) return Sleep(300);
    const auto start = std::chrono::steady_clock::now();
    world.Sweep();
    EXPECT_TRUE(at::equal(world.tensors[3].detach().clone(), world.Expected(3)));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(250));
  });
}

TEST(Gather, SmallParametersStayWholeAndAreNeverRead) {
  OnWorlds({.world_size = 2, .persistence_threshold = 200}, [](World& world) {
    for (const int p : {2, 5, 6, 7, 8}) {
      EXPECT_TRUE(at::equal(world.tensors[p].detach().clone(), world.Expected(p)));
    }
    EXPECT_EQ(world.store->statistics().gathers, 0);
    EXPECT_NE(world.tensors[2].const_data_ptr(), nullptr);  // may be read raw
    EXPECT_TRUE(at::equal(world.tensors[1].detach().clone(), world.Expected(1)));
    EXPECT_EQ(world.store->statistics().gathers, 1);
  });
}

TEST(Gather, RawAccessToASlicedParameterThrowsByName) {
  OnWorlds({.world_size = 2}, [](World& world) {
    for (int round = 0; round < 2; ++round) {
      const std::string message = MessageOf([&] { (void)world.tensors[3].const_data_ptr(); });
      EXPECT_NE(message.find("'wide'"), std::string::npos) << message;
      EXPECT_NE(message.find("hint:"), std::string::npos) << message;
      EXPECT_NE(MessageOf([&] { (void)world.tensors[3].mutable_data_ptr(); }).find("'wide'"),
                std::string::npos);
      world.Sweep();
      (void)world.tensors[0].sum();
      (void)world.tensors[1].sum();
      (void)world.tensors[6].sum();
    }
  });
}

TEST(Gather, HeldParametersMayBeReadRawUntilTheyAreLetGo) {
  OnWorlds({.world_size = 2}, [](World& world) {
    const std::vector<int> held = {3, 4, 0, 3};
    world.store->Acquire(held, /*write=*/false);
    const auto* data = world.tensors[3].const_data_ptr<float>();
    world.Sweep();  // must not push it out
    EXPECT_EQ(world.tensors[3].const_data_ptr<float>(), data);
    EXPECT_EQ(data[699], world.Expected(3).flatten()[699].item<float>());
    world.store->Release(held, false);
    EXPECT_TRUE(at::equal(world.tensors[3].detach().clone(), world.Expected(3)));
  });
}

TEST(Gather, GradientsAreThoseOfUnmanagedWeights) {
  for (const int stage : {0, 3}) {
    OnWorlds({.world_size = 2, .stage = stage}, [](World& world) {
      const auto loss_of = [](const std::vector<at::Tensor>& t) {
        const at::Tensor h = at::linear(at::tanh(t[1] * 0.01), t[1], t[2]);
        return (at::mm(h.narrow(1, 0, 10), t[3]).sum() + t[6].exp().mean()) * t[8] +
               t[5].sum() * t[7].sum();
      };
      std::vector<at::Tensor> plain;
      for (int p = 0; p < world.count(); ++p) {
        plain.push_back(world.Expected(p).set_requires_grad(world.tensors[p].requires_grad()));
      }
      const at::Tensor expected = loss_of(plain), actual = loss_of(world.tensors);
      EXPECT_TRUE(at::equal(expected, actual));
      expected.sum().backward();
      actual.sum().backward();
      for (int p = 0; p < world.count(); ++p) {
        ASSERT_EQ(world.tensors[p].grad().defined(), plain[p].grad().defined());
        if (!plain[p].grad().defined()) continue;
        EXPECT_TRUE(at::equal(world.tensors[p].grad(), plain[p].grad()));
      }
    });
  }
}

TEST(Gather, SeveralThreadsOfARankShareTheRing) {
  OnWorlds({.world_size = 2}, [](World& world) {
    std::vector<at::Tensor> expected;
    for (int p = 0; p < world.count(); ++p) expected.push_back(world.Expected(p));
    std::vector<int> wrong(4, 0);
    testsupport::RunOnThreads(4, [&](int thread) {
      std::mt19937 random(static_cast<unsigned>(thread));
      for (int round = 0; round < 300; ++round) {
        const auto p = random() % expected.size();
        wrong[thread] += !at::equal(world.tensors[p].detach().clone(), expected[p]);
      }
    });
    EXPECT_EQ(wrong, std::vector<int>(4, 0));
    EXPECT_EQ(world.Slots(), world.plan.ring_bytes);
  });
}

TEST(Gather, AParameterWithoutElementsIsOrdinary) {
  OnWorlds({.world_size = 4, .precision = Precision::kBFloat16}, [](World& world) {
    EXPECT_EQ(world.tensors[4].sizes(), at::IntArrayRef({0, 4}));
    EXPECT_EQ(world.tensors[4].scalar_type(), at::kBFloat16);
    EXPECT_TRUE(world.tensors[4].requires_grad());
    world.tensors[4].sum().backward();
    EXPECT_EQ(world.tensors[4].grad().numel(), 0);
    world.store->Acquire({4}, /*write=*/true);
    world.store->Release({4}, true);
  });
}

TEST(Gather, ADryRunCountsTheSameBytesAndTouchesNone) {
  std::vector<std::int64_t> real;
  OnWorlds({.world_size = 2}, [&](World& world) {
    if (world.rank() != 0) return;
    const auto now = world.ledger.now();
    real.assign(now.begin(), now.end());
  });
  const auto comm = comm::MakeFakeComm(0, 2);
  Settings settings;
  settings.train_micro_batch_size_per_gpu = 1;
  settings.zero.stage = 3;
  settings.zero.param_persistence_threshold = 0;
  settings.ullage.unit_size = 1;
  const plan::Plan plan = plan::MakePlan(settings, DefaultSpecs(), {.world_size = 2});
  const plan::WindowPlan window_plan = plan::MakeWindowPlan(plan);
  memory::Memory memory(memory::Place::kHost, /*dry=*/true);
  comm::TieredWindow window(*comm, window_plan, memory.device());
  {
    ParameterStore store(plan, window_plan, *comm, window, memory);
    const at::Tensor square = at::empty({16, 16}, at::kMeta).set_requires_grad(true);
    store.Bind(1, {square});
    const at::Tensor y = at::mm(square, square.t());
    EXPECT_TRUE(y.is_meta());
    EXPECT_EQ(store.statistics().gathers, 1);
    EXPECT_EQ(store.statistics().gathered_bytes, 1024);
    const auto now = memory.ledger().now();
    EXPECT_EQ(std::vector<std::int64_t>(now.begin(), now.end()), real);
  }
  for (const std::int64_t bytes : memory.ledger().now()) EXPECT_EQ(bytes, 0);
}

}  // namespace
}  // namespace ullage::params
