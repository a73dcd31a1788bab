// A profiler sees the phases of a step and what is done for each unit.
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/support.h"
#include "engine/training.h"

namespace ullage::testing {
namespace {

thread_local std::vector<std::string> seen;

std::unique_ptr<at::ObserverContext> See(const at::RecordFunction& function) {
  const std::string name = function.name();
  if (name.starts_with("ullage::")) seen.push_back(name);
  return nullptr;
}

TEST(Profile, ShowsPhasesGathersReductionsAndUpdates) {
  OnRanks(2, [](std::shared_ptr<Ranks> ranks) {
    seen.clear();
    const Model model;
    Engine engine(model.List(), SettingsFor({3, 2, 1'000'000, 1}), ranks);
    const auto handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback(See).scopes({at::RecordScope::USER_SCOPE}));
    engine.Backward(engine.Forward([&] { return model.Loss(at::ones({2, 19}), true); }));
    engine.Step();
    at::removeCallback(handle);
    const auto count = [](const std::string& name) { return std::ranges::count(seen, name); };
    for (const char* phase :
         {"ullage::forward", "ullage::backward", "ullage::step", "ullage::norm"}) {
      EXPECT_EQ(count(phase), 1) << phase;
    }
    // Seven units of one parameter each, the third of which is frozen.
    for (const int unit : {0, 1, 2, 3, 4, 5, 6}) {
      EXPECT_GE(count("ullage::gather " + std::to_string(unit)), 1) << unit;
      EXPECT_EQ(count("ullage::reduce " + std::to_string(unit)), unit == 2 ? 0 : 1) << unit;
      EXPECT_EQ(count("ullage::update " + std::to_string(unit)), unit == 2 ? 0 : 1) << unit;
    }
    EXPECT_EQ(seen.front(), "ullage::forward");
  });
}

}  // namespace
}  // namespace ullage::testing
