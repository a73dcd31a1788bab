// Checksums of a file, one for each MiB of it, so that a range can be verified without reading the
// rest.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace ullage::checkpoint {

// Block i of a file is its bytes [i * kBlockBytes, (i + 1) * kBlockBytes), fewer in the last one.
inline constexpr std::int64_t kBlockBytes = 1 << 20;

constexpr std::int64_t BlockCount(std::int64_t file_bytes) {
  return file_bytes / kBlockBytes + (file_bytes % kBlockBytes != 0);
}

// XXH3 with 64 bits and no seed.
std::uint64_t Checksum(const void* data, std::int64_t bytes);

// Feed a file's bytes in any pieces, then ask once. One thread.
class BlockChecksums {
 public:
  BlockChecksums();
  ~BlockChecksums();

  void Update(const void* data, std::int64_t bytes);
  // One for each block. Ends the stream.
  std::vector<std::uint64_t> Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
  std::int64_t in_block_ = 0;  // bytes of the block that is under way
  std::vector<std::uint64_t> checksums_;
};

}  // namespace ullage::checkpoint
