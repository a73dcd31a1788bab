#include "models/initial_value.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

namespace ullage::models {
namespace {

// FNV-1a over the bytes of the seed and the name: equal on every machine, unlike std::hash.
std::uint64_t SeedOf(const std::string& name, std::uint64_t seed) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  const auto add = [&hash](unsigned char byte) { hash = (hash ^ byte) * 0x100000001b3ULL; };
  for (int shift = 0; shift < 64; shift += 8) add(static_cast<unsigned char>(seed >> shift));
  for (const char letter : name) add(static_cast<unsigned char>(letter));
  return hash;
}

}  // namespace

void FillNormal(const std::string& name, std::uint64_t seed, double deviation, at::Tensor& out) {
  const at::Generator generator = at::detail::createCPUGenerator(SeedOf(name, seed));
  if (out.scalar_type() == at::kFloat) {
    out.normal_(0, deviation, generator);
  } else {
    out.copy_(at::empty(out.sizes(), at::kFloat).normal_(0, deviation, generator));
  }
}

}  // namespace ullage::models
