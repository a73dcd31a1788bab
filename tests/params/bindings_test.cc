// Parameters that are rebound, tied, or outlive the store.
#include "params/model_world.h"
#include "torchx/interception.h"
#include "ullage/error.h"

namespace ullage::params {
namespace {

TEST(Bindings, ValuesOfAReboundParameterAreAdopted) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const LoggedLines logged;
      OnWorlds({.world_size = 2, .stage = stage}, [&](World& world) {
        at::Tensor other = at::full({10, 70}, 3.0, dtype);
        world.tensors[3].set_data(other);
        world.store->CheckBindings();
        other.fill_(100);
        world.Sweep();
        EXPECT_EQ(world.tensors[3].scalar_type(), at::kFloat);
        EXPECT_TRUE(world.tensors[3].requires_grad());
        EXPECT_TRUE(at::equal(world.tensors[3].detach().clone(), at::full({10, 70}, 3.0)));
        EXPECT_NE(torchx::FindManaged(world.tensors[3]), nullptr);
        world.Update(1);
        EXPECT_TRUE(at::equal(world.tensors[3].detach().clone(), at::full({10, 70}, 4.0)));
        world.store->CheckBindings();
      });
      EXPECT_EQ(logged.Count("parameter 'wide' was rebound"), 2);
    }
  }
}

TEST(Bindings, AnotherShapeIsRefusedByName) {
  OnWorlds({.world_size = 2}, [](World& world) {
    const at::Tensor managed = world.tensors[3].detach();
    world.tensors[3].set_data(at::zeros({7, 100}));
    EXPECT_THROW(world.store->CheckBindings(), StateError);
    const std::string message = MessageOf([&] { world.store->CheckBindings(); });
    for (const char* part : {"'wide'", "[7, 100]", "[10, 70]", "hint:"}) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " in " << message;
    }
    world.tensors[3].set_data(managed);
    world.store->CheckBindings();
    world.tensors[3].set_data(at::zeros({10, 70}, at::kLong).to(at::kHalf));
    world.store->CheckBindings();
  });
}

TEST(Bindings, AnotherViewOfItsOwnStorageIsFound) {
  OnWorlds({.world_size = 2}, [](World& world) {
    world.tensors[1].set_data(world.tensors[1].detach().t());
    world.store->CheckBindings();
    EXPECT_TRUE(world.tensors[1].is_contiguous());
    EXPECT_TRUE(at::equal(world.tensors[1].detach().clone(), world.Expected(1).t()));
    world.tensors[3].set_data(world.tensors[3].detach().t());
    EXPECT_NE(MessageOf([&] { world.store->CheckBindings(); }).find("[70, 10]"), std::string::npos);
    world.tensors[3].set_data(world.tensors[3].detach().t());
    world.store->CheckBindings();
    EXPECT_TRUE(at::equal(world.tensors[3].detach().clone(), world.Expected(3)));
  });
}

TEST(Bindings, AChangedRequiresGradIsRefusedByName) {
  OnWorlds({.world_size = 2}, [](World& world) {
    world.tensors[6].set_requires_grad(false);
    EXPECT_NE(MessageOf([&] { world.store->CheckBindings(); }).find("'head'"), std::string::npos);
    EXPECT_THROW(world.store->CheckBindings(), StateError);
    world.tensors[6].set_requires_grad(true);
    world.tensors[7].set_requires_grad(true);
    EXPECT_NE(MessageOf([&] { world.store->CheckBindings(); }).find("'frozen'"), std::string::npos);
    world.tensors[7].set_requires_grad(false);
    world.store->CheckBindings();
  });
}

TEST(Bindings, OldStoragesAreReleased) {
  OnWorlds({.world_size = 2}, [](World& world) {
    const at::Tensor first = at::ones({16, 16}), second = first;
    const c10::Storage old = first.storage();
    EXPECT_EQ(old.use_count(), 2u);
    world.store->Bind(1, {first});
    EXPECT_EQ(old.use_count(), 1u);
    EXPECT_TRUE(at::equal(second.clone(), world.Expected(1)));
  });
}

TEST(Bindings, AliasesOfOneParameterStayTied) {
  OnWorlds({.world_size = 2}, [](World& world) {
    const at::Tensor a = at::ones({16, 16}), b = at::ones({16, 16});
    world.store->Bind(1, {a.set_requires_grad(true), b.set_requires_grad(true)});
    at::NoGradGuard no_grad;
    a.fill_(2);
    EXPECT_TRUE(at::equal(b.clone(), at::full({16, 16}, 2.0)));
    b.set_data(at::full({16, 16}, 5.0));
    world.store->CheckBindings();
    EXPECT_TRUE(at::equal(a.clone(), at::full({16, 16}, 5.0)));
    EXPECT_TRUE(a.is_alias_of(b));
  });
}

TEST(Bindings, WholeParametersOutliveTheStoreWithTheirValues) {
  std::vector<std::vector<at::Tensor>> left(2);
  OnWorlds({.world_size = 2, .stage = 2, .precision = Precision::kBFloat16}, [&](World& world) {
    world.Update(1);
    left[world.rank()] = world.tensors;
    left[world.rank()].push_back(world.Expected(3, 1));
  });
  for (const auto& tensors : left) {
    EXPECT_EQ(torchx::FindManaged(tensors[3]), nullptr);
    EXPECT_FALSE(tensors[3].key_set().has(torchx::kInterceptionKey));
    EXPECT_TRUE(at::equal(tensors[3], tensors.back()));
    EXPECT_EQ(tensors[3].const_data_ptr<at::BFloat16>()[0], tensors.back()[0][0].item<float>());
    at::NoGradGuard no_grad;
    tensors[3].add_(1);
    (tensors[1].detach().set_requires_grad(true) * 2).sum();
    tensors[7].resize_({500});
  }
}

TEST(Bindings, SlicedParametersThrowByNameWhenTheStoreIsGone) {
  std::vector<at::Tensor> left(2), whole(2);
  OnWorlds({.world_size = 2, .persistence_threshold = 50}, [&](World& world) {
    (void)world.tensors[3].sum();  // is present when the store ends
    left[world.rank()] = world.tensors[3];
    whole[world.rank()] = world.tensors[2];
  });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_NE(MessageOf([&] { (void)left[rank].sum(); }).find("'wide'"), std::string::npos);
    EXPECT_NE(MessageOf([&] { (void)left[rank].mutable_data_ptr(); }).find("'wide'"),
              std::string::npos);
    EXPECT_EQ(left[rank].sizes(), at::IntArrayRef({10, 70}));
    EXPECT_EQ(whole[rank].numel(), 16);
    EXPECT_EQ(whole[rank][0].item<float>(), (2 * 37) % 101 - 50);
  }
}

TEST(Bindings, TheLedgerIsEmptyWhenTheStoreIsGone) {
  OnWorlds({.world_size = 2}, [](World& world) {
    world.Sweep();
    world.store.reset();
    for (const std::int64_t bytes : world.ledger.now()) EXPECT_EQ(bytes, 0);
  });
}

}  // namespace
}  // namespace ullage::params
