#include "config/flat_settings.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "config/check_value.h"
#include "config/json_reader.h"
#include "config/nearest_key.h"
#include "ullage/error.h"

namespace ullage::config {
namespace {

using nlohmann::json;

std::string Join(const std::string& section, const std::string& key) {
  return section.empty() ? key : section + "." + key;
}

bool InScope(const KeyInfo& key, const std::vector<std::string_view>& scopes) {
  return key.scope.empty() || std::find(scopes.begin(), scopes.end(), key.scope) != scopes.end();
}

// The keys that could stand in the place of an unknown one: all but other types' parameters.
std::vector<std::string_view> Candidates(const std::vector<std::string_view>& scopes) {
  std::vector<std::string_view> paths;
  for (const KeyInfo* key : AllKeys()) {
    if (InScope(*key, scopes)) paths.push_back(key->path);
  }
  return paths;
}

std::string Parent(std::string_view path) {
  const std::size_t end = path.rfind('.');
  return end == path.npos ? "" : std::string(path.substr(0, end));
}

// The keys of a section under their first names; empty for the top level and when there are too
// many for one line.
std::string Siblings(const std::string& section, const std::vector<std::string_view>& scopes) {
  constexpr std::size_t kLongestLine = 300;
  std::string text;
  if (section.empty()) return text;
  for (const KeyInfo* key : AllKeys()) {
    if (!InScope(*key, scopes) || !key->alias_of.empty() || Parent(key->path) != section) continue;
    if (!text.empty()) text += ", ";
    text += key->path.substr(section.size() + 1);
  }
  return text.size() > kLongestLine ? "" : text;
}

[[noreturn]] void RefuseUnknown(const std::string& written, const std::string& path,
                                const std::vector<std::string_view>& scopes) {
  const std::string section = Parent(path);
  const std::string nearest = NearestKey(path, Candidates(scopes));
  const std::string siblings = Siblings(section, scopes);
  throw ConfigError(fmt::format("{}: unknown key{}", Shorten(written, 160),
                                nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest)),
                    siblings.empty()
                        ? "every key has to mean something here; remove what nothing reads"
                        : fmt::format("{} may hold: {}", section, siblings));
}

// A full stop or bracket inside a key would let it pass for a path.
void RequirePlain(const std::string& key, const std::string& written) {
  if (key.find_first_of(".[]") == key.npos) return;
  throw ConfigError(fmt::format("{}: unknown key; no key holds a full stop or bracket",
                                Shorten(Join(written, key), 160)),
                    "nest sections, as in {\"zero_optimization\": {\"stage\": 3}}");
}

}  // namespace

FlatSettings::FlatSettings(const json& root, std::vector<std::string_view> scopes)
    : scopes_(std::move(scopes)) {
  AddSection(root, "", "");
  for (const auto& [written, key] : details_) {
    if (AsksForSomething(std::string(key->detail_of))) AddNoEffect(written, key->reason);
  }
}

const FlatValue* FlatSettings::Find(const std::string& path) const {
  const auto found = values_.find(path);
  return found == values_.end() || found->second.value.is_null() ? nullptr : &found->second;
}

std::vector<std::string> FlatSettings::Given() const {
  std::vector<std::string> given;
  for (const auto& [path, entry] : values_) {
    if (!entry.value.is_null() && !entry.value.is_object()) given.push_back(path);
  }
  return given;
}

void FlatSettings::AddNoEffect(const std::string& key, std::string_view reason) {
  no_effect_.push_back(fmt::format("{}: no effect, because {}", key, reason));
}

void FlatSettings::Overrule(const std::string& path, std::string_view reason) {
  AddNoEffect(path, reason);
  values_.erase(path);
}

void FlatSettings::Restate(const std::string& from, const std::string& path, json value) {
  const std::string written = values_.at(from).written;
  values_.erase(from);
  Store(path, written, std::move(value));
}

bool FlatSettings::AsksForSomething(const std::string& path) const {
  const FlatValue* found = Find(path);
  return found != nullptr && found->value != json(false) && found->value != json("none");
}

void FlatSettings::AddSection(const json& section, const std::string& written,
                              const std::string& path) {
  for (const auto& item : section.items()) {
    RequirePlain(item.key(), written);
    AddKey(item.value(), Join(written, item.key()), Join(path, item.key()));
  }
}

void FlatSettings::AddKey(const json& value, const std::string& written, const std::string& path) {
  const KeyInfo* key = FindKey(path, scopes_);
  if (key == nullptr) RefuseUnknown(written, path, scopes_);
  json checked = CheckValue(*key, written, value);
  CheckOffered(*key, written, checked);
  if (key->standing == Standing::kNoEffect && !value.is_null()) {
    if (key->detail_of.empty()) {
      AddNoEffect(written, key->reason);
    } else {
      details_.emplace_back(written, key);
    }
  }
  const std::string first_name(key->alias_of.empty() ? key->path : key->alias_of);
  if (key->kind == ValueKind::kGroups) return AddGroups(value, written);
  Store(first_name, written, std::move(checked));
  const bool section = key->kind == ValueKind::kSection || key->kind == ValueKind::kZeroSection;
  if (section && value.is_object()) AddSection(value, written, first_name);
}

void FlatSettings::AddGroups(const json& groups, const std::string& written) {
  json checked_groups = json::array();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::string name = fmt::format("{}[{}]", written, i);
    if (!groups[i].is_object()) {
      throw ConfigError(
          fmt::format("{}: {} is not allowed; allowed: a section {{ }}", name, Show(groups[i])));
    }
    json checked = json::object();
    for (const auto& item : groups[i].items()) {
      RequirePlain(item.key(), name);
      const std::string path = written + "[]." + item.key();
      const KeyInfo* key = FindKey(path, scopes_);
      if (key == nullptr) RefuseUnknown(Join(name, item.key()), path, scopes_);
      checked[item.key()] = CheckValue(*key, Join(name, item.key()), item.value());
    }
    checked_groups.push_back(std::move(checked));
  }
  Store(written, written, std::move(checked_groups));
}

void FlatSettings::Store(const std::string& path, const std::string& written, json value) {
  const auto [entry, added] = values_.emplace(path, FlatValue{written, std::move(value)});
  if (!added) {
    throw ConfigError(
        fmt::format("{} and {}: two names of one setting", entry->second.written, written),
        fmt::format("keep {}", path));
  }
}

}  // namespace ullage::config
