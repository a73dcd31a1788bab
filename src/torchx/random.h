// Random numbers that depend on what is computed, not on who computes it.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace ullage::torchx {

// A seed for micro-batch `index` (counted over all ranks) of optimizer step `step`: SplitMix64
// over the three numbers, so that neighbours have unrelated streams.
std::uint64_t MixSeed(std::uint64_t seed, std::uint64_t step, std::uint64_t index);

// Seeds torch's default CPU generator and puts its state back when it ends. The generator is one
// for the process; ranks that are threads of one process share it.
class SeededRandom {
 public:
  explicit SeededRandom(std::uint64_t seed);
  ~SeededRandom();
  SeededRandom(const SeededRandom&) = delete;
  SeededRandom& operator=(const SeededRandom&) = delete;

 private:
  at::Tensor state_;
};

}  // namespace ullage::torchx
