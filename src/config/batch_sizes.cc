// Settings::ResolveBatchSizes: any two of the three batch keys give the third.
#include <optional>
#include <string>

#include <fmt/format.h>

#include "ullage/error.h"
#include "ullage/settings.h"

namespace ullage {
namespace {

void RequirePositive(const char* key, const std::optional<std::int64_t>& value) {
  if (!value || *value > 0) return;
  throw ConfigError(
      fmt::format("{}: {} is not allowed; allowed: an integer of at least 1", key, *value));
}

[[noreturn]] void RefuseProduct(const BatchSizes& sizes, int world_size, const Settings& given,
                                const std::string& product) {
  const auto derived = [](bool is_given) { return is_given ? "" : " (derived)"; };
  throw ConfigError(
      fmt::format("batch sizes do not fit: train_batch_size {}{} != "
                  "train_micro_batch_size_per_gpu {}{} * gradient_accumulation_steps {}{} * "
                  "{} ranks = {}",
                  sizes.train_batch, derived(given.train_batch_size.has_value()), sizes.micro_batch,
                  derived(given.train_micro_batch_size_per_gpu.has_value()),
                  sizes.accumulation_steps, derived(given.gradient_accumulation_steps.has_value()),
                  world_size, product),
      "leave one of the three keys out to have it derived, or choose a train_batch_size that is a "
      "multiple of the others' product");
}

// Empty when it does not fit into 63 bits.
std::optional<std::int64_t> Product(std::int64_t a, std::int64_t b, std::int64_t c) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product) || __builtin_mul_overflow(product, c, &product)) {
    return std::nullopt;
  }
  return product;
}

}  // namespace

BatchSizes Settings::ResolveBatchSizes(int world_size) const {
  if (world_size < 1) {
    throw ConfigError(fmt::format("{} ranks: allowed: an integer of at least 1", world_size));
  }
  RequirePositive("train_batch_size", train_batch_size);
  RequirePositive("train_micro_batch_size_per_gpu", train_micro_batch_size_per_gpu);
  RequirePositive("gradient_accumulation_steps", gradient_accumulation_steps);
  if (!train_batch_size && !train_micro_batch_size_per_gpu) {
    throw ConfigError(
        "neither train_batch_size nor train_micro_batch_size_per_gpu is given",
        "train_batch_size counts the samples of one optimizer step over all ranks, "
        "train_micro_batch_size_per_gpu those of one forward on one rank; give one of them");
  }

  BatchSizes sizes;
  sizes.train_batch = train_batch_size.value_or(0);
  if (train_micro_batch_size_per_gpu) {
    sizes.micro_batch = *train_micro_batch_size_per_gpu;
    sizes.accumulation_steps = gradient_accumulation_steps.value_or(
        train_batch_size ? *train_batch_size / sizes.micro_batch / world_size : 1);
  } else {
    sizes.accumulation_steps = gradient_accumulation_steps.value_or(1);
    sizes.micro_batch = *train_batch_size / world_size / sizes.accumulation_steps;
  }
  const std::optional<std::int64_t> product =
      Product(sizes.micro_batch, sizes.accumulation_steps, world_size);
  if (product && !train_batch_size) sizes.train_batch = *product;
  if (!product || *product != sizes.train_batch) {
    RefuseProduct(sizes, world_size, *this,
                  product ? fmt::format("{}", *product) : "more than 63 bits hold");
  }
  return sizes;
}

}  // namespace ullage
