#include "checkpoint/block_checksums.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ullage::checkpoint {

// Its vectors want an alignment of 64 bytes, which `new` keeps.
struct BlockChecksums::State {
  XXH3_state_t hash;
};

std::uint64_t Checksum(const void* data, std::int64_t bytes) {
  return XXH3_64bits(data, static_cast<std::size_t>(bytes));
}

BlockChecksums::BlockChecksums() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->hash);
}

BlockChecksums::~BlockChecksums() = default;

void BlockChecksums::Update(const void* data, std::int64_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const std::int64_t taken = std::min(bytes, kBlockBytes - in_block_);
    XXH3_64bits_update(&state_->hash, from, static_cast<std::size_t>(taken));
    from += taken;
    bytes -= taken;
    in_block_ += taken;
    if (in_block_ < kBlockBytes) continue;
    checksums_.push_back(XXH3_64bits_digest(&state_->hash));
    XXH3_64bits_reset(&state_->hash);
    in_block_ = 0;
  }
}

std::vector<std::uint64_t> BlockChecksums::Finish() {
  if (in_block_ > 0) checksums_.push_back(XXH3_64bits_digest(&state_->hash));
  in_block_ = 0;
  return std::move(checksums_);
}

}  // namespace ullage::checkpoint
