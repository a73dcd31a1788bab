#include "data/sampler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "data/random.h"
#include "ullage/error.h"

namespace ullage::data {
namespace {

std::span<std::int64_t> Part(std::span<std::int64_t> all, std::int64_t begin, std::int64_t count) {
  return all.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
}

// The stream of random numbers of an epoch, or of one window of it (from 1).
std::uint64_t Stream(std::int64_t epoch, std::int64_t window) {
  return static_cast<std::uint64_t>(epoch) << 32 ^ static_cast<std::uint64_t>(window);
}

}  // namespace

std::span<const std::int64_t> EpochOrder::Step(std::int64_t step) const {
  const std::int64_t begin = step * train_batch_;
  const auto size = static_cast<std::int64_t>(records_.size());
  return std::span(records_).subspan(
      static_cast<std::size_t>(begin),
      static_cast<std::size_t>(std::min(train_batch_, size - begin)));
}

std::span<const std::int64_t> EpochOrder::MicroBatch(std::int64_t step, std::int64_t j) const {
  const std::span<const std::int64_t> records = Step(step);
  // Even parts; the first ones are longer by one where they do not come out even. A full step
  // always does.
  const auto size = static_cast<std::int64_t>(records.size());
  const std::int64_t each = size / micro_batches_;
  const std::int64_t longer = size % micro_batches_;
  const std::int64_t begin = j * each + std::min(j, longer);
  return records.subspan(static_cast<std::size_t>(begin),
                         static_cast<std::size_t>(each + (j < longer ? 1 : 0)));
}

Sampler::Sampler(std::vector<std::int64_t> lengths, const SamplerOptions& options)
    : lengths_(std::move(lengths)), options_(options) {
  if (lengths_.empty()) {
    throw ConfigError("the data set is empty", "name a file with at least one record");
  }
  if (options_.train_batch < 1 || options_.micro_batch < 1 || options_.window_steps < 1 ||
      options_.train_batch % options_.micro_batch != 0) {
    throw ConfigError(
        fmt::format("train_batch_size {} and train_micro_batch_size_per_gpu {} do not fit together",
                    options_.train_batch, options_.micro_batch),
        "both must be at least 1, and the first a multiple of the second");
  }
  if (options_.order_batch == 0) options_.order_batch = options_.micro_batch;
  if (options_.order_batch < 1 || options_.train_batch % options_.order_batch != 0) {
    throw ConfigError(fmt::format("train_batch_size {} and an order in parts of {} records do not "
                                  "fit together",
                                  options_.train_batch, options_.order_batch),
                      "resume with the train_batch_size of the interrupted run");
  }
  if (options_.train_batch > records()) {
    throw ConfigError(fmt::format("train_batch_size {} is larger than the data set of {} records",
                                  options_.train_batch, records()),
                      fmt::format("use a train_batch_size of at most {}", records()));
  }
}

std::int64_t Sampler::steps_per_epoch() const {
  const std::int64_t partial = records() % options_.train_batch != 0 && !options_.drop_last ? 1 : 0;
  return records() / options_.train_batch + partial;
}

Position Sampler::After(std::int64_t steps) const {
  return {steps / steps_per_epoch(), steps % steps_per_epoch()};
}

EpochOrder Sampler::Order(std::int64_t epoch) const {
  EpochOrder order;
  order.train_batch_ = options_.train_batch;
  order.micro_batches_ = micro_batches_per_step();
  order.steps_ = steps_per_epoch();
  order.records_.resize(lengths_.size());
  std::iota(order.records_.begin(), order.records_.end(), 0);
  const std::span<std::int64_t> all(order.records_);
  if (options_.shuffle) Random(options_.seed, Stream(epoch, 0)).Shuffle(all);

  const std::int64_t full = records() / options_.train_batch * options_.train_batch;
  if (options_.group_by_length) {
    const std::int64_t window_records =
        std::min(full, options_.window_steps > full / options_.train_batch
                           ? full
                           : options_.window_steps * options_.train_batch);
    std::int64_t window = 1;
    for (std::int64_t begin = 0; begin < full; begin += window_records, ++window) {
      GroupWindow(Part(all, begin, std::min(window_records, full - begin)), Stream(epoch, window));
    }
    LongestFirst(Part(all, full, records() - full));
  }
  if (options_.drop_last) order.records_.resize(static_cast<std::size_t>(full));
  return order;
}

// The records, longest first; equally long ones keep their order.
void Sampler::LongestFirst(std::span<std::int64_t> step) const {
  std::stable_sort(step.begin(), step.end(), [this](std::int64_t a, std::int64_t b) {
    return lengths_[static_cast<std::size_t>(a)] > lengths_[static_cast<std::size_t>(b)];
  });
}

void Sampler::GroupWindow(std::span<std::int64_t> records, std::uint64_t stream) const {
  LongestFirst(records);
  const std::vector<std::int64_t> sorted(records.begin(), records.end());
  const auto part = static_cast<std::size_t>(options_.order_batch);
  std::vector<std::size_t> starts(sorted.size() / part);  // of each part in `sorted`
  for (std::size_t i = 0; i < starts.size(); ++i) starts[i] = i * part;
  if (options_.shuffle) Random(options_.seed, stream).Shuffle(std::span(starts));
  const auto per_step = static_cast<std::size_t>(options_.train_batch / options_.order_batch);
  for (std::size_t first = 0; first < starts.size(); first += per_step) {
    // By place in `sorted`, which is by length.
    std::sort(starts.begin() + static_cast<std::ptrdiff_t>(first),
              starts.begin() + static_cast<std::ptrdiff_t>(first + per_step));
  }
  std::size_t to = 0;
  for (const std::size_t start : starts) {
    for (std::size_t i = 0; i < part; ++i) records[to++] = sorted[start + i];
  }
}

}  // namespace ullage::data
