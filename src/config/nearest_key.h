// Which known key someone may have meant.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace ullage::config {

// Smallest number of insertions, deletions, replacements and swaps of neighbours that turn `a`
// into `b`. Costs |a| * |b|.
std::size_t EditDistance(std::string_view a, std::string_view b);

// The one of `known` (dotted paths) nearest to the dotted path `written`, at any level:
// "zero_stage" is near "zero_optimization.stage". Empty when none is near.
std::string NearestKey(std::string_view written, std::span<const std::string_view> known);

// The one of `known` nearest to `written` by letters alone, whatever their case; empty when none
// is near. For names of types.
std::string NearestWord(std::string_view written, std::span<const std::string_view> known);

}  // namespace ullage::config
