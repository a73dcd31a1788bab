#include "comm/sizes.h"

#include <fmt/format.h>

#include "comm/window_memory.h"
#include "ullage/error.h"

namespace ullage::comm {

void CheckAllGather(std::span<const std::byte> mine, std::span<std::byte> all, int world_size) {
  if (all.size() != mine.size() * static_cast<std::size_t>(world_size)) {
    throw ConfigError(fmt::format("all_gather of {} bytes by {} ranks into {} bytes", mine.size(),
                                  world_size, all.size()),
                      "the receiving span must hold one contribution for each rank");
  }
}

void CheckRoot(int root, int world_size) {
  if (root < 0 || root >= world_size) {
    throw ConfigError(fmt::format("broadcast from rank {} of {} ranks", root, world_size),
                      "ranks are numbered from 0");
  }
}

void CheckAllToAll(std::span<const std::byte> send, std::span<std::byte> receive,
                   std::int64_t chunk_bytes, int world_size) {
  if (chunk_bytes < 0 || SizeBytes(send) != chunk_bytes * world_size ||
      SizeBytes(receive) != chunk_bytes * world_size) {
    throw ConfigError(fmt::format("all_to_all of {} chunks of {} bytes from {} into {} bytes",
                                  world_size, chunk_bytes, send.size(), receive.size()),
                      "both spans must hold one chunk for each rank");
  }
}

void CheckWindow(std::int64_t bytes, int words) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 50;
  if (bytes < 0 || bytes > kMostBytes || words < 0 || words > WindowMemory::kMostWords) {
    throw ConfigError(
        fmt::format("a window of {} bytes and {} words", bytes, words),
        fmt::format("at most {} bytes and {} words", kMostBytes, WindowMemory::kMostWords));
  }
}

}  // namespace ullage::comm
