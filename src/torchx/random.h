// Random numbers that depend on what is computed, not on who computes it.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ullage::torchx {

// A seed for micro-batch `index` (counted over all ranks) of optimizer step `step`: SplitMix64
// over the three numbers, so that neighbours have unrelated streams.
std::uint64_t MixSeed(std::uint64_t seed, std::uint64_t step, std::uint64_t index);

// The states of torch's default generators: "cpu", and "cuda" when `device` is one. Bytes of uint8.
std::vector<std::pair<std::string, at::Tensor>> GeneratorStates(c10::Device device);
// Puts a state of that name back; a generator that this process lacks is left out. Throws what
// torch throws for bytes that are no state.
void SetGeneratorState(const std::string& name, const at::Tensor& state, c10::Device device);

// Seeds torch's default CPU generator, and that of `device` when it is a CUDA device, and puts
// their states back when it ends. The generators are one for the process; ranks that are threads
// of one process share them.
class SeededRandom {
 public:
  SeededRandom(std::uint64_t seed, c10::Device device);
  ~SeededRandom();
  SeededRandom(const SeededRandom&) = delete;
  SeededRandom& operator=(const SeededRandom&) = delete;

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

}  // namespace ullage::torchx
