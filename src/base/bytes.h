// Byte counts as people write and read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ullage {

// "40GiB", "200 GB", "64MB", "4096", "38e9", "1.5GiB". KB, MB, GB, TB are powers of 1000; KiB to
// TiB powers of 1024; no unit means bytes. Throws ConfigError for anything else, for negative
// values and for what does not fit into 63 bits.
std::int64_t ParseBytes(std::string_view text);

// "512 B", "46.9 MiB", "1.25 GiB": three significant digits, binary units.
std::string FormatBytes(std::int64_t bytes);

}  // namespace ullage
