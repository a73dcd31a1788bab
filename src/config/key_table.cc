#include "config/key_table.h"

#include <algorithm>
#include <unordered_map>

namespace ullage::config {
namespace {

std::vector<const KeyInfo*> CollectKeys() {
  std::vector<const KeyInfo*> keys;
  for (const auto part : {TopKeys(), PrecisionKeys(), ZeroKeys(), OffloadKeys(), OptimizerKeys(),
                          SchedulerKeys(), ToolKeys(), UllageKeys()}) {
    for (const KeyInfo& key : part) keys.push_back(&key);
  }
  return keys;
}

std::unordered_multimap<std::string_view, const KeyInfo*> IndexKeys() {
  std::unordered_multimap<std::string_view, const KeyInfo*> index;
  for (const KeyInfo* key : AllKeys()) index.emplace(key->path, key);
  return index;
}

}  // namespace

const std::vector<const KeyInfo*>& AllKeys() {
  static const std::vector<const KeyInfo*> keys = CollectKeys();
  return keys;
}

const KeyInfo* FindKey(std::string_view path, std::span<const std::string_view> scopes) {
  static const auto index = IndexKeys();
  const auto [begin, end] = index.equal_range(path);
  for (auto it = begin; it != end; ++it) {
    const KeyInfo* key = it->second;
    if (key->scope.empty() || std::find(scopes.begin(), scopes.end(), key->scope) != scopes.end()) {
      return key;
    }
  }
  return nullptr;
}

std::string_view Name(Standing standing) {
  switch (standing) {
    case Standing::kHonoured:
      return "honoured";
    case Standing::kNoEffect:
      return "no effect";
    case Standing::kNotOffered:
      return "not offered";
    case Standing::kNotOfferedYet:
      return "not offered yet";
    case Standing::kInert:
      return "inert";
  }
  return "?";
}

}  // namespace ullage::config
