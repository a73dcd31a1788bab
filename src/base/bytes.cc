#include "base/bytes.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "ullage/error.h"

namespace ullage {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr std::array<Unit, 14> kUnits = {{{"", 1},
                                          {"b", 1},
                                          {"kb", 1e3},
                                          {"mb", 1e6},
                                          {"gb", 1e9},
                                          {"tb", 1e12},
                                          {"kib", 0x1p10},
                                          {"mib", 0x1p20},
                                          {"gib", 0x1p30},
                                          {"tib", 0x1p40},
                                          {"k", 1e3},
                                          {"m", 1e6},
                                          {"g", 1e9},
                                          {"t", 1e12}}};

[[noreturn]] void Refuse(std::string_view text) {
  throw ConfigError(fmt::format("'{}' is not a number of bytes", text),
                    "write a number with a unit, such as \"40GiB\", \"64MB\" or 38e9");
}

}  // namespace

std::int64_t ParseBytes(std::string_view text) {
  double value = 0;
  const char* end = text.data() + text.size();
  auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || !std::isfinite(value) || value < 0) Refuse(text);
  while (rest != end && *rest == ' ') ++rest;
  std::string name;
  for (; rest != end; ++rest) {
    name += static_cast<char>(std::tolower(static_cast<unsigned char>(*rest)));
  }
  for (const Unit& unit : kUnits) {
    if (unit.name != name) continue;
    const double bytes = std::round(value * unit.factor);
    if (bytes >= 0x1p63) Refuse(text);
    return static_cast<std::int64_t>(bytes);
  }
  Refuse(text);
}

std::string FormatBytes(std::int64_t bytes) {
  constexpr std::array<const char*, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1023.5 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, decimals, kNames[unit]);
}

}  // namespace ullage
