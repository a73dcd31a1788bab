#include "data/loader.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "../files/scratch.h"
#include "files/faulty_file_system.h"
#include "sample_data.h"
#include "ullage/error.h"

namespace ullage::data {
namespace {

using testsupport::MessageOf;
using testsupport::OpenData;
using testsupport::Scratch;
using testsupport::WriteNumbered;
using Ints = std::vector<std::int64_t>;

// The records of a batch: in these files every token of record i is i.
Ints Records(const Batch& batch) {
  Ints records;
  for (std::int64_t i = 0; i < batch.records; ++i) {
    records.push_back(batch.input_ids.const_data_ptr<std::int64_t>()[i * batch.input_ids.size(1)]);
  }
  return records;
}

Sampler MakeSampler(const Dataset& data, std::int64_t train_batch, std::int64_t micro_batch) {
  return Sampler(Lengths(data),
                 {.train_batch = train_batch, .micro_batch = micro_batch, .seed = 11});
}

// Records by (epoch, step, number of the micro-batch), over `steps` steps of all ranks.
std::map<Ints, Ints> Everything(const Dataset& data, int world_size, std::int64_t steps) {
  std::map<Ints, Ints> all;
  for (int rank = 0; rank < world_size; ++rank) {
    Loader loader(data, MakeSampler(data, 16, 4), {.rank = rank, .world_size = world_size});
    for (std::int64_t i = 0; i < steps * loader.accumulation_steps(); ++i) {
      const Batch batch = loader.Next();
      const Ints key = {batch.position.epoch, batch.position.step, batch.micro_batch};
      EXPECT_EQ(batch.micro_batch % world_size, rank);
      EXPECT_TRUE(all.emplace(key, Records(batch)).second);
    }
  }
  return all;
}

TEST(Loader, MicroBatchesDoNotDependOnHowRanksAndAccumulationSplitThem) {
  Scratch scratch;
  WriteNumbered(scratch / "t", 150);
  const Dataset data = OpenData(scratch / "t");
  const auto one = Everything(data, 1, 25);  // two and a half epochs of 10 steps
  EXPECT_EQ(one.size(), 100u);
  EXPECT_EQ(one, Everything(data, 2, 25));
  EXPECT_EQ(one, Everything(data, 4, 25));
  Ints epoch;
  for (const auto& [key, records] : one) {
    if (key[0] == 0) epoch.insert(epoch.end(), records.begin(), records.end());
  }
  std::sort(epoch.begin(), epoch.end());
  ASSERT_EQ(epoch.size(), 150u);
  for (std::int64_t i = 0; i < 150; ++i) EXPECT_EQ(epoch[static_cast<std::size_t>(i)], i);
}

TEST(Loader, ResumesExactlyAtAnyPosition) {
  Scratch scratch;
  WriteNumbered(scratch / "t", 70);
  const Dataset data = OpenData(scratch / "t");
  Loader whole(data, MakeSampler(data, 16, 4), {.rank = 1, .world_size = 2});
  ASSERT_EQ(whole.accumulation_steps(), 2);
  ASSERT_EQ(whole.steps_per_epoch(), 5);
  for (int step = 0; step < 12; ++step) {
    const Position here = whole.position();
    EXPECT_EQ(here, (Position{step / 5, step % 5}));
    Loader resumed(data, MakeSampler(data, 16, 4), {.rank = 1, .world_size = 2}, here);
    for (int micro = 0; micro < 2; ++micro) {
      const Batch expected = whole.Next();
      const Batch batch = resumed.Next();
      EXPECT_EQ(batch.position, here);
      EXPECT_EQ(Records(batch), Records(expected));
      if (micro == 0) {
        EXPECT_EQ(whole.position(), here);  // in the middle of a step
      }
    }
  }
}

TEST(Loader, CountsTheLabelsOfTheWholeStepAndThePadding) {
  Scratch scratch;
  WriteNumbered(scratch / "t", 70);
  const Dataset data = OpenData(scratch / "t");
  std::map<std::int64_t, Ints> counted, announced;  // by step
  std::int64_t real = 0;
  for (int rank = 0; rank < 2; ++rank) {
    Loader loader(data, MakeSampler(data, 16, 4), {.rank = rank, .world_size = 2});
    std::int64_t padded = 0;
    for (int i = 0; i < 10; ++i) {
      const Batch batch = loader.Next();
      std::int64_t valid = 0;
      for (std::int64_t record : Records(batch)) valid += record % 10 == 9 ? 0 : 1;
      counted[batch.position.step].push_back(valid);
      announced[batch.position.step].push_back(batch.step_valid_labels);
      padded += batch.padded_tokens;
    }
    EXPECT_EQ(loader.padded_tokens(), padded);
    real += loader.real_tokens();
  }
  const Ints lengths = Lengths(data);
  EXPECT_EQ(real, std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}));
  for (const auto& [step, counts] : counted) {
    const std::int64_t sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    EXPECT_EQ(announced[step], Ints(4, sum)) << step;
  }
}

TEST(Loader, TheLastStepOfAnEpochMayLeaveRanksWithoutRecords) {
  Scratch scratch;
  WriteNumbered(scratch / "t", 17);
  const Dataset data = OpenData(scratch / "t");
  Ints sizes;
  for (int rank = 0; rank < 4; ++rank) {
    Loader loader(data, MakeSampler(data, 16, 4), {.rank = rank, .world_size = 4});
    EXPECT_EQ(loader.Next().records, 4);
    sizes.push_back(loader.Next().records);
    EXPECT_EQ(loader.Next().records, 4);
  }
  EXPECT_EQ(sizes, (Ints{1, 0, 0, 0}));
}

TEST(Loader, AReadErrorSurfacesInNext) {
  Scratch scratch;
  WriteNumbered(scratch / "t", 64);
  files::PosixFileSystem real;
  files::FaultyFileSystem fs(real, {.failed_read_at = 14});  // 4 for opening, then record by record
  const Dataset data = Dataset::Open(fs, scratch / "t");
  Loader loader(data, MakeSampler(data, 4, 4), {});
  EXPECT_EQ(loader.Next().records, 4);
  EXPECT_EQ(loader.Next().records, 4);
  for (int i = 0; i < 2; ++i) {
    EXPECT_NE(MessageOf<IoError>([&] { loader.Next(); }).find("Input/output error"),
              std::string::npos);
  }
}

TEST(Loader, MayBeDestroyedAtAnyMoment) {
  Scratch scratch;
  WriteNumbered(scratch / "t", 64);
  const Dataset data = OpenData(scratch / "t");
  for (int i = 0; i < 50; ++i) {
    Loader loader(data, MakeSampler(data, 8, 4), {});
    for (int taken = 0; taken < i % 4; ++taken) loader.Next();
  }
}

TEST(Loader, RefusesWhatDoesNotFit) {
  Scratch scratch;
  WriteNumbered(scratch / "t", 64);
  const Dataset data = OpenData(scratch / "t");
  EXPECT_THROW(Loader(data, MakeSampler(data, 16, 4), {.world_size = 3}), ConfigError);
  EXPECT_THROW(Loader(data, MakeSampler(data, 16, 4), {.rank = 2, .world_size = 2}), ConfigError);
  EXPECT_THROW(Loader(data, MakeSampler(data, 16, 4), {}, {0, 4}), ConfigError);
  EXPECT_THROW(Loader(data, MakeSampler(data, 16, 4), {}, {-1, 0}), ConfigError);
  EXPECT_THROW(Loader(data, MakeSampler(data, 16, 4), {.padding = {.multiple_of = 0}}),
               ConfigError);
  EXPECT_THROW(Loader(data, Sampler(Ints{1, 2}, {}), {}), ConfigError);
}

TEST(EvaluationLoader, SeesEveryRecordOnceOverAllRanks) {
  Scratch scratch;
  for (int count : {1, 3, 10, 64, 67}) {
    WriteNumbered(scratch / "t", count);
    const Dataset data = OpenData(scratch / "t");
    for (int world_size : {1, 2, 3, 4}) {
      Ints seen;
      Ints batches;
      for (int rank = 0; rank < world_size; ++rank) {
        EvaluationLoader loader(data, 4, {.rank = rank, .world_size = world_size});
        std::int64_t given = 0;
        while (const auto batch = loader.Next()) {
          const Ints records = Records(*batch);
          seen.insert(seen.end(), records.begin(), records.end());
          EXPECT_EQ(batch->step_valid_labels, count - count / 10);
          ++given;
        }
        EXPECT_EQ(given, loader.batches());
        batches.push_back(given);
      }
      EXPECT_EQ(batches, Ints(batches.size(), batches[0]));  // ranks stay in step
      std::sort(seen.begin(), seen.end());
      ASSERT_EQ(seen.size(), static_cast<std::size_t>(count)) << world_size;
      for (int i = 0; i < count; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], i);
    }
  }
}

TEST(EvaluationLoader, RefusesAnEmptyDataSet) {
  Scratch scratch;
  WriteNumbered(scratch / "t", 0);
  const Dataset data = OpenData(scratch / "t");
  EXPECT_THROW(EvaluationLoader(data, 4, {}), ConfigError);
}

}  // namespace
}  // namespace ullage::data
