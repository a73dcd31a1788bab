// Which hyper-parameters hold for which parameter.
#include "optim/parameter_groups.h"

#include <gtest/gtest.h>

#include "ullage/error.h"

namespace ullage::optim {
namespace {

const std::vector<std::string> kFamily = {"bias$", "LayerNorm"};

std::vector<layout::ParameterSpec> Specs() {
  std::vector<layout::ParameterSpec> specs;
  const auto add = [&](const std::string& name, std::int64_t numel, bool trainable = true) {
    layout::ParameterSpec spec;
    spec.name = name;
    spec.shape = {numel};
    spec.numel = numel;
    spec.trainable = trainable;
    specs.push_back(spec);
  };
  add("embeddings.word", 100);
  add("layer.0.weight", 50);
  add("layer.0.bias", 5);
  add("layer.0.LayerNorm.weight", 6);
  add("layer.1.weight", 40);
  add("frozen.bias", 7, false);
  add("head.weight", 20);
  add("head.bias", 2);
  return specs;
}

Settings WithDecay() {
  Settings settings;
  settings.optimizer.lr = 0.01;
  settings.optimizer.weight_decay = 0.1;
  return settings;
}

const Group& GroupOf(const Groups& groups, int parameter) {
  return groups.groups[static_cast<std::size_t>(groups.of_parameter[parameter])];
}

std::string MessageOf(const Settings& settings) {
  try {
    (void)MakeGroups(settings, kFamily, Specs());
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(ParameterGroups, WithoutDecayThereIsOneGroup) {
  const Groups groups = MakeGroups({}, kFamily, Specs());
  ASSERT_EQ(groups.groups.size(), 1u);
  EXPECT_EQ(groups.groups[0].name, "default");
  EXPECT_EQ(groups.groups[0].parameters, 7);
  EXPECT_EQ(groups.groups[0].numel, 223);
  EXPECT_EQ(groups.of_parameter, std::vector<int>(8, 0));
}

TEST(ParameterGroups, BiasesAndNormsOfAFamilyHaveNoDecay) {
  const Groups groups = MakeGroups(WithDecay(), kFamily, Specs());
  ASSERT_EQ(groups.groups.size(), 2u);
  for (const int p : {0, 1, 4, 6}) EXPECT_EQ(GroupOf(groups, p).weight_decay, 0.1);
  for (const int p : {2, 3, 7}) EXPECT_EQ(GroupOf(groups, p).weight_decay, 0);
  EXPECT_EQ(groups.of_parameter[5], 0);
  EXPECT_EQ(GroupOf(groups, 2).name, "default (no decay)");
  EXPECT_EQ(GroupOf(groups, 2).parameters, 3);
  EXPECT_EQ(GroupOf(groups, 2).numel, 13);
}

TEST(ParameterGroups, TheUsersOwnNoDecayReplacesTheFamilys) {
  Settings settings = WithDecay();
  settings.ullage.no_decay = {"^head"};
  const Groups groups = MakeGroups(settings, kFamily, Specs());
  EXPECT_EQ(GroupOf(groups, 2).weight_decay, 0.1);
  EXPECT_EQ(GroupOf(groups, 6).weight_decay, 0);
  settings.ullage.no_decay = std::vector<std::string>{};
  EXPECT_EQ(MakeGroups(settings, kFamily, Specs()).groups.size(), 1u);
}

TEST(ParameterGroups, TheFirstPatternThatMatchesHolds) {
  Settings settings = WithDecay();
  settings.ullage.parameter_groups = {{.pattern = "layer\\.0", .lr_factor = 0.5},
                                      {.pattern = "layer", .lr_factor = 0.25},
                                      {.pattern = "head", .lr = 0.03, .weight_decay = 0.7}};
  const Groups groups = MakeGroups(settings, kFamily, Specs());
  EXPECT_EQ(GroupOf(groups, 0).lr_factor, 1);
  EXPECT_EQ(GroupOf(groups, 1).lr_factor, 0.5);
  EXPECT_EQ(GroupOf(groups, 1).weight_decay, 0.1);
  EXPECT_EQ(GroupOf(groups, 2).lr_factor, 0.5);
  EXPECT_EQ(GroupOf(groups, 2).weight_decay, 0);
  EXPECT_EQ(GroupOf(groups, 4).lr_factor, 0.25);
  EXPECT_DOUBLE_EQ(GroupOf(groups, 6).lr_factor, 3);  // 0.03 over the optimizer's 0.01
  // A group that sets its decay sets it for all that it holds.
  EXPECT_EQ(GroupOf(groups, 6).weight_decay, 0.7);
  EXPECT_EQ(GroupOf(groups, 7).weight_decay, 0.7);
  EXPECT_EQ(groups.of_parameter[6], groups.of_parameter[7]);
}

TEST(ParameterGroups, ALearningRateAndAFactorMultiply) {
  Settings settings;
  settings.optimizer.lr = 0.01;
  settings.ullage.parameter_groups = {{.pattern = "head", .lr_factor = 0.5, .lr = 0.04}};
  EXPECT_DOUBLE_EQ(GroupOf(MakeGroups(settings, {}, Specs()), 6).lr_factor, 2);
}

TEST(ParameterGroups, PatternsThatMatchNothingAreRefusedByKey) {
  Settings settings = WithDecay();
  settings.ullage.no_decay = {"bias", "nothing"};
  EXPECT_NE(MessageOf(settings).find("ullage.no_decay: 'nothing'"), std::string::npos);
  EXPECT_NE(MessageOf(settings).find("'embeddings.word'"), std::string::npos);  // an example
  settings = WithDecay();
  settings.ullage.parameter_groups = {{.pattern = "head"}, {.pattern = "frozen"}};
  EXPECT_NE(MessageOf(settings).find("ullage.parameter_groups[1].pattern: 'frozen'"),
            std::string::npos);
  settings.ullage.parameter_groups = {{.pattern = "head"}, {.pattern = "head.bias"}};
  EXPECT_NE(MessageOf(settings).find("earlier group"), std::string::npos);
  // The family's patterns need not match.
  EXPECT_EQ(MakeGroups(WithDecay(), {"nothing"}, Specs()).groups.size(), 1u);
}

TEST(ParameterGroups, WhatIsNoRegularExpressionIsRefusedByKey) {
  Settings settings = WithDecay();
  settings.ullage.no_decay = {"(bias"};
  EXPECT_NE(MessageOf(settings).find("ullage.no_decay: '(bias' is no regular expression"),
            std::string::npos);
  settings = WithDecay();
  settings.ullage.parameter_groups = {{.pattern = "[a"}};
  EXPECT_NE(MessageOf(settings).find("ullage.parameter_groups[0].pattern: '[a'"),
            std::string::npos);
}

TEST(ParameterGroups, AnOwnLearningRateNeedsABaseToScale) {
  Settings settings;
  settings.optimizer.lr = 0;
  settings.ullage.parameter_groups = {{.pattern = "head", .lr = 0.1}};
  EXPECT_NE(MessageOf(settings).find("ullage.parameter_groups[0].lr"), std::string::npos);
}

TEST(ParameterGroups, AllFrozenStillHasAGroup) {
  std::vector<layout::ParameterSpec> specs = Specs();
  for (layout::ParameterSpec& spec : specs) spec.trainable = false;
  const Groups groups = MakeGroups(WithDecay(), kFamily, specs);
  ASSERT_EQ(groups.groups.size(), 1u);
  EXPECT_EQ(groups.groups[0].parameters, 0);
}

TEST(ParameterGroups, LinesNameCountsAndValues) {
  Settings settings = WithDecay();
  settings.ullage.parameter_groups = {{.pattern = "head", .lr_factor = 10}};
  const std::vector<std::string> lines = MakeGroups(settings, {"LayerNorm"}, Specs()).Lines();
  EXPECT_EQ(lines, (std::vector<std::string>{
                       "parameter group 'default': 4 parameters, 195 elements, lr x 1, weight "
                       "decay 0.1",
                       "parameter group 'default (no decay)': 1 parameters, 6 elements, lr x 1, "
                       "weight decay 0",
                       "parameter group 'head': 2 parameters, 22 elements, lr x 10, weight decay "
                       "0.1"}));
}

TEST(Matches, SearchesAnywhereInTheName) {
  EXPECT_EQ(Matches("0\\.b|^head", "key", Specs()),
            (std::vector<bool>{false, false, true, false, false, false, true, true}));
}

}  // namespace
}  // namespace ullage::optim
