#include "cli/output_directory.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "files/scratch.h"
#include "ullage/error.h"

namespace ullage::cli {
namespace {

class OutputDirectory : public ::testing::Test {
 protected:
  OutputDirectory() {
    std::filesystem::create_directories(scratch_ / "model");
    std::filesystem::create_directories(scratch_ / "out");
  }

  void Touch(const std::string& name) const { scratch_.Write(name, "x"); }
  void Check(const std::string& output) { CheckOutput(fs_, scratch_ / output, scratch_ / "model"); }

  files::PosixFileSystem fs_;
  testsupport::Scratch scratch_;
};

TEST_F(OutputDirectory, NewAndEmptyOnesAreTaken) {
  EXPECT_NO_THROW(Check("new"));
  EXPECT_NO_THROW(Check("out"));
}

TEST_F(OutputDirectory, TheOutputOfAnEarlierRunIsTaken) {
  Touch("out/model.safetensors");
  Touch("out/ullage.json");
  EXPECT_NO_THROW(Check("out"));
}

TEST_F(OutputDirectory, WhatAKilledRunLeavesIsTaken) {
  Touch("out/metrics.jsonl");
  Touch("out/model.safetensors.partial");
  EXPECT_NO_THROW(Check("out"));
}

TEST_F(OutputDirectory, SomebodyElsesFolderIsRefused) {
  Touch("out/metrics.jsonl");
  Touch("out/thesis.txt");
  EXPECT_THROW(Check("out"), ConfigError);
}

TEST_F(OutputDirectory, AFileIsRefused) {
  Touch("file");
  EXPECT_THROW(Check("file"), ConfigError);
}

TEST_F(OutputDirectory, TheModelsFolderIsRefusedByAnyName) {
  Touch("model/ullage.json");
  EXPECT_THROW(Check("out/../model"), ConfigError);
}

TEST_F(OutputDirectory, AFileToWriteNeedsItsFolder) {
  EXPECT_NO_THROW(CheckFileToWrite(fs_, scratch_ / "report.json", "--report"));
  EXPECT_THROW(CheckFileToWrite(fs_, scratch_ / "no/report.json", "--report"), ConfigError);
  EXPECT_THROW(CheckFileToWrite(fs_, scratch_ / "out", "--report"), ConfigError);
}

TEST_F(OutputDirectory, AWholeFileReplacesTheOldOneAndLeavesNothingBeside) {
  Touch("report.json");
  WriteWhole(fs_, scratch_ / "report.json", "new");
  EXPECT_EQ(fs_.ReadText(scratch_ / "report.json", 100), "new");
  EXPECT_EQ(fs_.List(scratch_.path()), (std::vector<std::string>{"model", "out", "report.json"}));
}

TEST_F(OutputDirectory, MetricsAreThereLineByLineAndBeginAnew) {
  Touch("out/metrics.jsonl");
  MetricsFile metrics(fs_, scratch_ / "out");
  metrics.Add("{\"step\":1}");
  EXPECT_EQ(fs_.ReadText(scratch_ / "out/metrics.jsonl", 100), "{\"step\":1}\n");
  metrics.Add("{\"step\":2}");
  EXPECT_EQ(fs_.ReadText(scratch_ / "out/metrics.jsonl", 100), "{\"step\":1}\n{\"step\":2}\n");
}

}  // namespace
}  // namespace ullage::cli
