// A settings file with every key found in the table and every value checked against its row: from
// here on only what several keys say together can still be wrong.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "config/key_table.h"

namespace ullage::config {

struct FlatValue {
  std::string written;  // the path as it stands in the file; an alias keeps its name
  nlohmann::json value;
};

class FlatSettings {
 public:
  // Throws ConfigError or UnsupportedError for the first key or value that cannot be obeyed.
  // `scopes` names the optimizer and the scheduler type, whose parameters are known then.
  FlatSettings(const nlohmann::json& root, std::vector<std::string_view> scopes);

  // The value under the key's first name, whichever name the file uses; null when absent or null.
  const FlatValue* Find(const std::string& path) const;
  bool Has(const std::string& path) const { return Find(path) != nullptr; }
  // Has, or written as null.
  bool Mentions(const std::string& path) const { return values_.contains(path); }

  // Sets `field` when the key is there. The row's kind must suit the type.
  template <typename T>
  void Read(const std::string& path, T& field) const {
    if (const FlatValue* found = Find(path)) field = found->value.get<T>();
  }

  std::vector<std::string> Given() const;
  const std::vector<std::string>& no_effect() const { return no_effect_; }
  void AddNoEffect(const std::string& key, std::string_view reason);
  // The key's value does not hold, because of another key; it no longer counts as given.
  void Overrule(const std::string& path, std::string_view reason);
  // What stands at `from` says the same as `value` at `path`, and counts as given there. Throws
  // ConfigError when there is such a value already.
  void Restate(const std::string& from, const std::string& path, nlohmann::json value);

 private:
  void AddSection(const nlohmann::json& section, const std::string& written,
                  const std::string& path);
  void AddKey(const nlohmann::json& value, const std::string& written, const std::string& path);
  void AddGroups(const nlohmann::json& groups, const std::string& written);
  void Store(const std::string& path, const std::string& written, nlohmann::json value);
  bool AsksForSomething(const std::string& path) const;

  std::vector<std::string_view> scopes_;
  std::map<std::string, FlatValue> values_;
  std::vector<std::pair<std::string, const KeyInfo*>> details_;  // as written; see detail_of
  std::vector<std::string> no_effect_;
};

}  // namespace ullage::config
