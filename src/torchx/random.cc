#include "torchx/random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <mutex>

namespace ullage::torchx {
namespace {

std::uint64_t SplitMix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

std::uint64_t MixSeed(std::uint64_t seed, std::uint64_t step, std::uint64_t index) {
  return SplitMix(SplitMix(SplitMix(seed) ^ step) ^ index);
}

SeededRandom::SeededRandom(std::uint64_t seed, c10::Device device) {
  std::vector<at::Generator> generators = {at::detail::getDefaultCPUGenerator()};
  if (device.is_cuda()) generators.push_back(at::globalContext().defaultGenerator(device));
  for (at::Generator& generator : generators) {
    std::lock_guard lock(generator.mutex());
    states_.emplace_back(generator, generator.get_state());
    generator.set_current_seed(seed);
  }
}

SeededRandom::~SeededRandom() {
  for (auto& [generator, state] : states_) {
    std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

}  // namespace ullage::torchx
