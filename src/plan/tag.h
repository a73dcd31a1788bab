// What bytes are for. Every byte that the engine allocates carries one of these.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ullage::plan {

enum class Tag : std::uint8_t {
  kWeights,    // what the model computes with: owned slices and parameters that stay whole
  kMaster,     // what 16-bit weights lack of their fp32 values
  kMoments,    // optimizer state
  kGradients,  // sums of the owned slices
  kSlots,      // gathered units
  kBuckets,    // gradients on their way to their owners
  kPadding,    // alignment inside the buffers of the tags above
  kData,       // batches
  kSaves,      // state that changes before a checkpoint in the background has it
};

inline constexpr std::size_t kTagCount = 9;

inline constexpr std::array<std::string_view, kTagCount> kTagNames = {
    "weights", "master", "moments", "gradients", "slots", "buckets", "padding", "data", "saves"};

constexpr std::string_view Name(Tag tag) {
  return kTagNames[static_cast<std::size_t>(tag)];
}

// Where bytes lie. On a CPU the memory that operators work in stands for the device's.
enum class Tier : std::uint8_t {
  kDevice,  // where operators run
  kHost,    // memory of the host, page-locked where it can be
  kDisk,    // a file of the rank's own
};

inline constexpr std::size_t kTierCount = 3;

inline constexpr std::array<std::string_view, kTierCount> kTierNames = {"device", "host", "disk"};

constexpr std::string_view Name(Tier tier) {
  return kTierNames[static_cast<std::size_t>(tier)];
}

}  // namespace ullage::plan
