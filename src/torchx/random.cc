#include "torchx/random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <mutex>
#include <utility>

#include "ullage/error.h"

namespace ullage::torchx {
namespace {

std::uint64_t SplitMix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

thread_local SeedTable* current_table = nullptr;

std::uint64_t DrawFromCpu() {
  auto* generator = at::get_generator_or_default<at::CPUGeneratorImpl>(
      std::nullopt, at::detail::getDefaultCPUGenerator());
  const std::lock_guard lock(generator->mutex_);
  return generator->random64();
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

Seed DrawSeed() {
  Seed seed{DrawFromCpu()};
  if (current_table == nullptr) return seed;
  std::vector<std::int64_t>& values = current_table->values_;
  if (values.size() == SeedTable::kCapacity) {
    throw UnsupportedError(
        fmt::format("a recorded pass that uses random numbers more than {} times",
                    SeedTable::kCapacity),
        "set ullage.cuda_graphs to \"off\"");
  }
  const auto* places =
      reinterpret_cast<const std::uint64_t*>(current_table->places_.const_data_ptr<std::int64_t>());
  seed.place = places + values.size();
  values.push_back(static_cast<std::int64_t>(seed.value));
  return seed;
}

SeedTable::SeedTable(c10::Device device)
    : places_(at::empty({static_cast<std::int64_t>(kCapacity)},
                        at::TensorOptions().dtype(at::kLong).device(device))) {}

SeedTable::Scope::Scope(SeedTable& table) {
  table.values_.clear();
  current_table = &table;
}

SeedTable::Scope::~Scope() {
  current_table = nullptr;
}

void SeedTable::Fill() {
  if (values_.empty()) return;
  const auto size = static_cast<std::int64_t>(values_.size());
  // The copy has read pageable memory when it returns.
  places_.narrow(0, 0, size)
      .copy_(at::from_blob(values_.data(), {size}, at::kLong),
             /*non_blocking=*/true);
}

void SeedTable::DrawAnew(std::size_t count) {
  values_.clear();
  for (std::size_t i = 0; i < count; ++i) {
    values_.push_back(static_cast<std::int64_t>(DrawFromCpu()));
  }
  Fill();
}

}  // namespace ullage::torchx
