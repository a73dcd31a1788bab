#include "config/key_table.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "accepted_keys.h"

namespace ullage::config {
namespace {

std::string Line(const KeyInfo& key) {
  std::string line = std::string(key.path) + ": " + std::string(Name(key.standing));
  if (!key.scope.empty()) line += " (" + std::string(key.scope) + ")";
  return line;
}

// A key that leaves this list, or is no longer obeyed, breaks somebody's file.
TEST(KeyTable, AcceptsExactlyTheFrozenKeys) {
  std::vector<std::string> table;
  for (const KeyInfo* key : AllKeys()) table.push_back(Line(*key));
  std::vector<std::string> frozen;
  std::istringstream lines(kAcceptedKeys);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) frozen.push_back(line);
  }
  std::sort(table.begin(), table.end());
  std::sort(frozen.begin(), frozen.end());
  EXPECT_EQ(table, frozen);
}

TEST(KeyTable, NoKeyStandsTwice) {
  std::set<std::pair<std::string_view, std::string_view>> seen;
  for (const KeyInfo* key : AllKeys()) {
    EXPECT_TRUE(seen.emplace(key->path, key->scope).second) << key->path;
  }
}

TEST(KeyTable, EverySectionOfAKeyStandsToo) {
  for (const KeyInfo* key : AllKeys()) {
    const std::size_t end = key->path.rfind('.');
    if (end == key->path.npos) continue;
    std::string_view parent = key->path.substr(0, end);
    if (parent.ends_with("[]")) parent.remove_suffix(2);
    EXPECT_NE(FindKey(parent, {}), nullptr) << key->path;
  }
}

TEST(KeyTable, WhatIsNotObeyedSaysWhy) {
  for (const KeyInfo* key : AllKeys()) {
    const bool needs_reason =
        key->standing != Standing::kHonoured && key->standing != Standing::kInert;
    EXPECT_EQ(!key->reason.empty(), needs_reason) << key->path;
  }
}

TEST(KeyTable, ADetailHasNoEffectAndNamesAKeyThatIsObeyed) {
  for (const KeyInfo* key : AllKeys()) {
    if (key->detail_of.empty()) continue;
    EXPECT_EQ(key->standing, Standing::kNoEffect) << key->path;
    const KeyInfo* other = FindKey(key->detail_of, {});
    ASSERT_NE(other, nullptr) << key->path;
    EXPECT_EQ(other->standing, Standing::kHonoured) << key->path;
  }
}

TEST(KeyTable, AnotherNameStandsForAKeyOfTheSameKind) {
  for (const KeyInfo* key : AllKeys()) {
    if (key->alias_of.empty()) continue;
    const std::vector<std::string_view> scopes = {key->scope};
    const KeyInfo* first = FindKey(key->alias_of, scopes);
    ASSERT_NE(first, nullptr) << key->path;
    EXPECT_TRUE(first->alias_of.empty()) << key->path;
    EXPECT_EQ(first->kind, key->kind) << key->path;
    EXPECT_EQ(first->standing, key->standing) << key->path;
    EXPECT_EQ(first->min, key->min) << key->path;
    EXPECT_EQ(first->max, key->max) << key->path;
  }
}

TEST(KeyTable, AcceptedValuesAreJson) {
  for (const KeyInfo* key : AllKeys()) {
    std::istringstream values{std::string(key->accepted)};
    for (std::string value; std::getline(values, value, '|');) {
      EXPECT_TRUE(nlohmann::json::accept(value)) << key->path;
    }
  }
}

TEST(KeyTable, ParametersAreFoundOnlyWithTheirType) {
  const std::vector<std::string_view> sgd = {"SGD"};
  const std::vector<std::string_view> adam = {"Adam"};
  EXPECT_NE(FindKey("optimizer.params.momentum", sgd), nullptr);
  EXPECT_EQ(FindKey("optimizer.params.momentum", adam), nullptr);
  EXPECT_NE(FindKey("optimizer.params.lr", adam), nullptr);
  EXPECT_EQ(FindKey("no.such.key", adam), nullptr);
}

}  // namespace
}  // namespace ullage::config
