// What bytes are for. Every byte that the engine allocates carries one of these.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ullage::plan {

enum class Tag : std::uint8_t {
  kWeights,    // what the model computes with: owned slices and parameters that stay whole
  kMaster,     // fp32 copies of 16-bit weights
  kMoments,    // optimizer state
  kGradients,  // fp32 sums of the owned slices
  kSlots,      // gathered units
  kBuckets,    // gradients on their way to their owners
  kPadding,    // alignment inside the buffers of the tags above
  kData,       // batches
};

inline constexpr std::size_t kTagCount = 8;

inline constexpr std::array<std::string_view, kTagCount> kTagNames = {
    "weights", "master", "moments", "gradients", "slots", "buckets", "padding", "data"};

constexpr std::string_view Name(Tag tag) {
  return kTagNames[static_cast<std::size_t>(tag)];
}

}  // namespace ullage::plan
