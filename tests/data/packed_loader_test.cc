// Packed data through the loaders: the same steps for any number of ranks, every token once.
#include <algorithm>
#include <map>
#include <numeric>

#include "../files/scratch.h"
#include "data/loader.h"
#include "sample_data.h"

namespace ullage::data {
namespace {

using testsupport::Documents;
using testsupport::OpenPacked;
using testsupport::Scratch;
using testsupport::WriteDocuments;
using Ints = std::vector<std::int64_t>;

// Documents of 1 to 29 tokens, all different numbers from 100 on; returns how many.
std::int64_t WriteMany(const std::string& path, bool with_prompts) {
  Documents documents, labels;
  std::int32_t next = 100;
  for (int i = 0; i < 90; ++i) {
    documents.emplace_back(static_cast<std::size_t>(1 + i * 13 % 29));
    std::iota(documents.back().begin(), documents.back().end(), next);
    next += static_cast<std::int32_t>(documents.back().size());
    labels.push_back(documents.back());
    std::fill_n(labels.back().begin(), labels.back().size() / 3, -100);
  }
  WriteDocuments(path, documents, with_prompts ? labels : Documents{});
  return next - 100;
}

void AppendTokens(const Batch& batch, Ints& tokens) {
  const auto* ids = batch.input_ids.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < batch.input_ids.numel(); ++i) {
    if (ids[i] >= 100) tokens.push_back(ids[i]);
  }
}

std::int64_t ValidLabels(const Batch& batch) {
  const auto* labels = batch.labels.const_data_ptr<std::int64_t>();
  return batch.labels.numel() - std::count(labels, labels + batch.labels.numel(), -100);
}

Ints AllTokens(std::int64_t count) {
  Ints all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 100);
  return all;
}

struct Global {
  std::map<Ints, Ints> ids;                // by (epoch, step, micro-batch)
  std::map<Ints, Ints> labels;             // the same
  std::map<Ints, std::int64_t> counted;    // by (epoch, step)
  std::map<Ints, std::int64_t> announced;  // the same, in each batch
};

Global Everything(const TrainingData& data, int world_size, std::int64_t steps) {
  Global all;
  for (int rank = 0; rank < world_size; ++rank) {
    const Sampler sampler(
        Lengths(data), {.train_batch = 8, .micro_batch = 2, .seed = 11, .group_by_length = false});
    Loader loader(data, sampler, {.rank = rank, .world_size = world_size});
    for (std::int64_t i = 0; i < steps * loader.accumulation_steps(); ++i) {
      const Batch batch = loader.Next();
      const Ints step = {batch.position.epoch, batch.position.step};
      const Ints key = {step[0], step[1], batch.micro_batch};
      const auto copy = [](const at::Tensor& tensor) {
        const auto* values = tensor.const_data_ptr<std::int64_t>();
        return Ints(values, values + tensor.numel());
      };
      EXPECT_TRUE(all.ids.emplace(key, copy(batch.input_ids)).second);
      all.labels.emplace(key, copy(batch.labels));
      all.counted[step] += ValidLabels(batch);
      EXPECT_TRUE(all.announced.emplace(step, batch.step_valid_labels).second ||
                  all.announced[step] == batch.step_valid_labels);
    }
  }
  return all;
}

TEST(PackedLoader, StepsDoNotDependOnTheNumberOfRanks) {
  Scratch scratch;
  for (const bool with_prompts : {false, true}) {
    WriteMany(scratch / "t", with_prompts);
    const PackedDataset data = OpenPacked(scratch / "t", 16, 3);
    const std::int64_t steps = (data.records() + 7) / 8;
    const Global one = Everything(data, 1, 2 * steps);
    for (const int world_size : {2, 4}) {
      const Global several = Everything(data, world_size, 2 * steps);
      EXPECT_EQ(one.ids, several.ids);
      EXPECT_EQ(one.labels, several.labels);
    }
    EXPECT_EQ(one.counted, one.announced);
  }
}

TEST(PackedLoader, AnEpochHasEveryTokenOnce) {
  Scratch scratch;
  for (const bool with_prompts : {false, true}) {
    const std::int64_t count = WriteMany(scratch / "t", with_prompts);
    const PackedDataset data = OpenPacked(scratch / "t", 16, 3);
    const std::int64_t steps = (data.records() + 7) / 8;
    const Global all = Everything(data, 2, 2 * steps);
    std::map<std::int64_t, Ints> by_epoch, in_order;
    for (const auto& [key, ids] : all.ids) {
      for (const std::int64_t id : ids) {
        if (id >= 100) by_epoch[key[0]].push_back(id);
      }
    }
    in_order = by_epoch;
    for (std::int64_t epoch : {0, 1}) {
      std::sort(by_epoch[epoch].begin(), by_epoch[epoch].end());
      EXPECT_EQ(by_epoch[epoch], AllTokens(count)) << epoch;
    }
    EXPECT_NE(in_order[0], in_order[1]);  // in another order each time
  }
}

TEST(PackedLoader, CountsTokensAndPadding) {
  Scratch scratch;
  const std::int64_t count = WriteMany(scratch / "t", /*with_prompts=*/true);
  const PackedDataset data = OpenPacked(scratch / "t", 32, 3);
  const Sampler sampler(Lengths(data),
                        {.train_batch = 4, .micro_batch = 4, .group_by_length = false});
  Loader loader(data, sampler, {});
  for (std::int64_t step = 0; step < loader.steps_per_epoch(); ++step) loader.Next();
  EXPECT_EQ(loader.real_tokens(), count);
  EXPECT_EQ(loader.padded_tokens(), 32 * data.records() - count);
}

TEST(PackedLoader, AnEvaluationSeesEveryTokenOnceOverAllRanks) {
  Scratch scratch;
  for (const bool with_prompts : {false, true}) {
    const std::int64_t count = WriteMany(scratch / "t", with_prompts);
    for (const std::int64_t sequence_length : {8, 64}) {
      const PackedDataset data = OpenPacked(scratch / "t", sequence_length);
      for (const int world_size : {1, 3, 4}) {
        Ints seen, batches;
        std::int64_t valid = 0, announced = 0;
        for (int rank = 0; rank < world_size; ++rank) {
          EvaluationLoader loader(data, 3, {.rank = rank, .world_size = world_size});
          while (const auto batch = loader.Next()) {
            AppendTokens(*batch, seen);
            valid += ValidLabels(*batch);
            announced = batch->step_valid_labels;
          }
          batches.push_back(loader.batches());
        }
        EXPECT_EQ(batches, Ints(batches.size(), batches[0]));
        std::sort(seen.begin(), seen.end());
        EXPECT_EQ(seen, AllTokens(count));
        EXPECT_EQ(valid, announced);
      }
    }
  }
}

}  // namespace
}  // namespace ullage::data
