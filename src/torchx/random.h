// Random numbers that depend on what is computed, not on who computes it.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
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

// A seed for one use of random numbers, such as a dropout.
struct Seed {
  std::uint64_t value = 0;
  // Where it lies on the device, when what uses it is recorded (SeedTable).
  const std::uint64_t* place = nullptr;
};

// Draws one from torch's default CPU generator: at::manual_seed and whoever saves and restores that
// generator decide it. Locks the generator. Throws UnsupportedError when a SeedTable is full.
Seed DrawSeed();

// Seeds that lie on a device, so that work which was recorded once can be done with others: what
// is recorded reads a place, and before each repetition the places get new seeds.
class SeedTable {
 public:
  static constexpr std::size_t kCapacity = 4096;

  explicit SeedTable(c10::Device device);
  SeedTable(const SeedTable&) = delete;
  SeedTable& operator=(const SeedTable&) = delete;

  // While it lives, DrawSeed on this thread gives the places of the table, from the first.
  class Scope {
   public:
    explicit Scope(SeedTable& table);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };
  // Seeds that the last scope gave.
  std::size_t count() const { return values_.size(); }
  // The values of the last scope reach the device, in the current queue of operators.
  void Fill();
  // Draws `count` seeds in place of those of a scope, and fills the table with them.
  void DrawAnew(std::size_t count);

 private:
  friend Seed DrawSeed();

  at::Tensor places_;  // [kCapacity] int64, on the device
  std::vector<std::int64_t> values_;
};

}  // namespace ullage::torchx
