// Every key of a settings file that has a meaning, as data: what it may hold and what becomes of
// it. The reader, the tests and the documentation all go by this table.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

namespace ullage::config {

enum class Standing : std::uint8_t {
  kHonoured,       // obeyed
  kNoEffect,       // accepted and listed at start: the design removes the need
  kNotOffered,     // refused, except for the values in `accepted`
  kNotOfferedYet,  // the same; a later release brings it
  kInert,          // read only by a feature whose own switch refuses or is off
};

enum class ValueKind : std::uint8_t {
  kBool,
  kInteger,  // 5e8 counts as one
  kNumber,
  kNumberOrList,  // a number; DeepSpeed also takes one number for each parameter group
  kBetas,         // two numbers in [0, 1)
  kString,
  kDType,        // fp32, bf16, fp16 or int8 in any of DeepSpeed's spellings
  kBytes,        // an integer, or text such as "40GiB"
  kStrings,      // a list of strings
  kPatterns,     // a list of regular expressions
  kPattern,      // one regular expression
  kGroups,       // a list of sections; their keys stand below "[]"
  kSection,      // an object whose keys stand in the table
  kZeroSection,  // the same, or true or false
  kOpaque,       // anything: a feature that is refused whatever its details are
  kAnything,     // any value, never looked at
};

inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();

struct KeyInfo {
  std::string_view path;  // dotted
  Standing standing = Standing::kHonoured;
  ValueKind kind = ValueKind::kSection;
  double min = -kUnlimited;  // numbers, both ends included
  double max = kUnlimited;
  bool nullable = false;        // null means absent
  std::string_view words = "";  // kString: the words it may be, separated by '|'; empty: any
  // Not offered: the values that ask for nothing, as JSON separated by '|'.
  std::string_view accepted = "";
  std::string_view reason = "";  // why it has no effect or is not offered
  // No effect: listed only when the key named here asks for something.
  std::string_view detail_of = "";
  std::string_view auto_is = "";   // what the Hugging Face Trainer puts in place of "auto"
  std::string_view alias_of = "";  // the key in whose place this one may stand
  std::string_view scope = "";     // only with this optimizer or scheduler type
};

// The parts of the table, each in a file of its own.
std::span<const KeyInfo> TopKeys();
std::span<const KeyInfo> PrecisionKeys();
std::span<const KeyInfo> ZeroKeys();
std::span<const KeyInfo> OffloadKeys();
std::span<const KeyInfo> OptimizerKeys();
std::span<const KeyInfo> SchedulerKeys();
std::span<const KeyInfo> ToolKeys();
std::span<const KeyInfo> UllageKeys();

// All of them, in the order above.
const std::vector<const KeyInfo*>& AllKeys();

// The row of a dotted path, or null. A row with a scope is found only when `scopes` names it.
const KeyInfo* FindKey(std::string_view path, std::span<const std::string_view> scopes);

// "honoured", "no effect", "not offered", "not offered yet", "inert".
std::string_view Name(Standing standing);

}  // namespace ullage::config
