// Checks of the arguments of a collective, the same for every Comm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ullage::comm {

template <class T>
std::int64_t SizeBytes(std::span<T> values) {
  return static_cast<std::int64_t>(values.size_bytes());
}

// Each throws ConfigError with the sizes.
void CheckAllGather(std::span<const std::byte> mine, std::span<std::byte> all, int world_size);
void CheckRoot(int root, int world_size);
void CheckAllToAll(std::span<const std::byte> send, std::span<std::byte> receive,
                   std::int64_t chunk_bytes, int world_size);
void CheckWindow(std::int64_t bytes, int words);

}  // namespace ullage::comm
