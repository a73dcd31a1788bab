#include "data/loader.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "ullage/error.h"

namespace ullage::data {
namespace {

void Check(const LoaderOptions& options) {
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size) {
    throw ConfigError(fmt::format("rank {} of {} ranks", options.rank, options.world_size),
                      "ranks count from 0");
  }
  if (options.padding.multiple_of < 1) {
    throw ConfigError(fmt::format("--pad-to-multiple-of {}", options.padding.multiple_of),
                      "use 1 or more; 8 suits tensor cores");
  }
}

// Produces the micro-batches of one rank. Lives on the prefetching thread.
class TrainingSource {
 public:
  TrainingSource(const TrainingData& data, Sampler sampler, const LoaderOptions& options,
                 Position start)
      : data_(data), sampler_(std::move(sampler)), options_(options), position_(start) {}

  Batch Produce() {
    if (!order_ready_) {
      order_ = sampler_.Order(position_.epoch);
      order_ready_ = true;
    }
    const std::int64_t j = micro_step_ * options_.world_size + options_.rank;
    Batch batch = data_.MakeBatch(order_.MicroBatch(position_.step, j), options_.padding);
    batch.step_valid_labels = data_.CountValidLabels(order_.Step(position_.step));
    batch.position = position_;
    batch.micro_batch = j;
    Advance();
    return batch;
  }

 private:
  void Advance() {
    if (++micro_step_ * options_.world_size < order_.micro_batches_per_step()) return;
    micro_step_ = 0;
    if (++position_.step < order_.steps()) return;
    position_ = {position_.epoch + 1, 0};
    order_ready_ = false;
  }

  const TrainingData& data_;
  const Sampler sampler_;
  const LoaderOptions options_;
  Position position_;
  std::int64_t micro_step_ = 0;
  EpochOrder order_;
  bool order_ready_ = false;
};

}  // namespace

Loader::Loader(const TrainingData& data, Sampler sampler, const LoaderOptions& options,
               Position start)
    : accumulation_steps_(0), steps_per_epoch_(sampler.steps_per_epoch()), position_(start) {
  Check(options);
  const std::int64_t micro_batches = sampler.micro_batches_per_step();
  if (micro_batches % options.world_size != 0) {
    throw ConfigError(
        fmt::format("{} micro-batches of {} records a step cannot be dealt out to {} ranks",
                    micro_batches, sampler.options().micro_batch, options.world_size),
        "train_batch_size must be train_micro_batch_size_per_gpu times ranks times a whole number");
  }
  if (sampler.records() != data.records()) {
    throw ConfigError(fmt::format("the sampler knows {} records, {} holds {}", sampler.records(),
                                  data.path(), data.records()),
                      "make the sampler from Lengths(data)");
  }
  if (start.epoch < 0 || start.step < 0 || start.step >= steps_per_epoch_) {
    throw ConfigError(fmt::format("epoch {} step {} cannot be resumed: an epoch of {} has {} steps",
                                  start.epoch, start.step, data.path(), steps_per_epoch_),
                      "resume with the data and the batch size of the interrupted run");
  }
  accumulation_steps_ = micro_batches / options.world_size;
  auto source = std::make_shared<TrainingSource>(data, std::move(sampler), options, start);
  prefetcher_ = std::make_unique<Prefetcher<Batch>>(
      [source]() -> std::optional<Batch> { return source->Produce(); },
      std::max<std::size_t>(1, options.prefetch));
}

Batch Loader::Next() {
  Batch batch = *prefetcher_->Next();  // never nullopt: training data does not end
  real_tokens_ += batch.real_tokens;
  padded_tokens_ += batch.padded_tokens;
  if (++taken_ == accumulation_steps_) {
    taken_ = 0;
    if (++position_.step == steps_per_epoch_) position_ = {position_.epoch + 1, 0};
  }
  return batch;
}

EvaluationLoader::EvaluationLoader(const TrainingData& data, std::int64_t micro_batch,
                                   const LoaderOptions& options) {
  Check(options);
  if (data.records() == 0 || micro_batch < 1) {
    throw ConfigError(fmt::format("cannot evaluate {} records of {} in batches of {}",
                                  data.records(), data.path(), micro_batch),
                      "the data needs at least one record and the batch at least 1");
  }
  std::vector<std::int64_t> records(static_cast<std::size_t>(data.records()));
  std::iota(records.begin(), records.end(), 0);
  std::stable_sort(records.begin(), records.end(),
                   [&](std::int64_t a, std::int64_t b) { return data.Length(a) > data.Length(b); });
  const std::int64_t valid_labels = data.CountValidLabels(records);
  const std::int64_t count = data.records() / micro_batch + (data.records() % micro_batch != 0);
  batches_ = (count + options.world_size - 1) / options.world_size;
  auto produce = [&data, options, micro_batch, valid_labels, batches = batches_,
                  records = std::move(records),
                  next = std::int64_t{0}]() mutable -> std::optional<Batch> {
    if (next == batches) return std::nullopt;
    const std::int64_t j = next * options.world_size + options.rank;
    const auto size = static_cast<std::int64_t>(records.size());
    const std::int64_t begin = j > size / micro_batch ? size : std::min(size, j * micro_batch);
    const std::int64_t taken = std::min(micro_batch, size - begin);
    Batch batch = data.MakeBatch(std::span(records).subspan(static_cast<std::size_t>(begin),
                                                            static_cast<std::size_t>(taken)),
                                 options.padding);
    batch.step_valid_labels = valid_labels;
    batch.position = {0, next};
    batch.micro_batch = j;
    ++next;
    return batch;
  };
  prefetcher_ = std::make_unique<Prefetcher<Batch>>(std::move(produce),
                                                    std::max<std::size_t>(1, options.prefetch));
}

}  // namespace ullage::data
