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

std::vector<std::pair<std::string, at::Generator>> DefaultGenerators(c10::Device device) {
  std::vector<std::pair<std::string, at::Generator>> generators = {
      {"cpu", at::detail::getDefaultCPUGenerator()}};
  if (device.is_cuda()) {
    generators.emplace_back("cuda", at::globalContext().defaultGenerator(device));
  }
  return generators;
}

}  // namespace

std::uint64_t MixSeed(std::uint64_t seed, std::uint64_t step, std::uint64_t index) {
  return SplitMix(SplitMix(SplitMix(seed) ^ step) ^ index);
}

std::vector<std::pair<std::string, at::Tensor>> GeneratorStates(c10::Device device) {
  std::vector<std::pair<std::string, at::Tensor>> states;
  for (auto& [name, generator] : DefaultGenerators(device)) {
    std::lock_guard lock(generator.mutex());
    states.emplace_back(name, generator.get_state());
  }
  return states;
}

void SetGeneratorState(const std::string& wanted, const at::Tensor& state, c10::Device device) {
  for (auto& [name, generator] : DefaultGenerators(device)) {
    if (name != wanted) continue;
    std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

SeededRandom::SeededRandom(std::uint64_t seed, c10::Device device) {
  for (auto& [name, generator] : DefaultGenerators(device)) {
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
