// What `ullage doctor` makes of machines that are not this one.
#include "cli/doctor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

namespace ullage::cli {
namespace {

MachineFacts Sound() {
  MachineFacts facts;
  facts.has_nvidia = true;
  facts.driver = "580.159.04";
  facts.built_with_cuda = 13000;
  facts.capabilities = {80, 86, 89, 90};
  facts.devices = {
      {"NVIDIA H200", 9, 0, 132, std::int64_t{143} << 30, std::int64_t{142} << 30, {}, 5e10, 5e10}};
  facts.torch = "2.11.0";
  facts.memory = std::int64_t{512} << 30;
  facts.available = std::int64_t{500} << 30;
  facts.available_bound = "MemAvailable of this host";
  facts.huge_pages = "madvise";
  facts.cores = 16;
  return facts;
}

// The remedies of what is at least as bad as `level`.
std::vector<std::string> Remedies(const MachineFacts& facts, Level level) {
  std::vector<std::string> remedies;
  for (const Finding& finding : Judge(facts)) {
    if (finding.level >= level) remedies.push_back(finding.remedy);
  }
  return remedies;
}

TEST(Doctor, FindsNothingOnASoundMachine) {
  EXPECT_TRUE(Remedies(Sound(), Level::kNote).empty());
}

TEST(Doctor, ComparesDriversAsNumbers) {
  EXPECT_TRUE(IsOlder("525.60.12", "525.60.13"));
  EXPECT_TRUE(IsOlder("99.1", "525.60.13"));
  EXPECT_FALSE(IsOlder("525.60.13", "525.60.13"));
  EXPECT_FALSE(IsOlder("580.65.06", "525.60.13"));
  EXPECT_EQ(OldestDriver(12080), "525.60.13");
  EXPECT_EQ(OldestDriver(13000), "580.65.06");
}

TEST(Doctor, NamesTheDriverThatIsNeeded) {
  MachineFacts facts = Sound();
  facts.driver = "535.104.05";
  facts.devices.clear();
  facts.why_no_cuda = "no CUDA device can be used";
  const auto problems = Remedies(facts, Level::kProblem);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(problems[0].find("580.65.06"), std::string::npos);
  facts.built_with_cuda = 12080;  // which that driver runs
  EXPECT_TRUE(Remedies(facts, Level::kProblem).empty());
}

TEST(Doctor, SaysWhatToBuildForADeviceWithoutKernels) {
  MachineFacts facts = Sound();
  facts.devices[0].major = 12;
  const auto problems = Remedies(facts, Level::kProblem);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(problems[0].find("CMAKE_CUDA_ARCHITECTURES=120"), std::string::npos);
  facts.devices[0].major = 8;  // 8.0's kernels run on 8.7
  facts.devices[0].minor = 7;
  EXPECT_TRUE(Remedies(facts, Level::kProblem).empty());
}

TEST(Doctor, AGpuAndABuildWithoutCudaIsAProblem) {
  MachineFacts facts = Sound();
  facts.built_with_cuda = 0;
  facts.devices.clear();
  EXPECT_EQ(Remedies(facts, Level::kProblem).size(), 1u);
  facts.has_nvidia = false;
  EXPECT_TRUE(Remedies(facts, Level::kProblem).empty());
}

TEST(Doctor, NotesWhatCostsSpeedOrRoom) {
  const auto notes = [](auto change) {
    MachineFacts facts = Sound();
    change(facts);
    return Remedies(facts, Level::kNote).size();
  };
  EXPECT_EQ(notes([](MachineFacts& f) { f.devices[0].free -= std::int64_t{30} << 30; }), 1u);
  EXPECT_EQ(notes([](MachineFacts& f) { f.memlock = 8 << 20; }), 1u);
  EXPECT_EQ(notes([](MachineFacts& f) { f.huge_pages = "never"; }), 1u);
  EXPECT_EQ(notes([](MachineFacts& f) { f.omp_threads = "1"; }), 1u);
  EXPECT_EQ(notes([](MachineFacts& f) { f.available = f.memory / 4; }), 1u);
  EXPECT_EQ(notes([](MachineFacts& f) { f.devices.push_back(f.devices[0]); }), 2u);
}

TEST(Doctor, ReadsSettings) {
  const std::string path = (std::filesystem::temp_directory_path() / "ullage-doctor.json").string();
  std::ofstream(path) << R"({"train_batch_size": 8, "gradient_clipp1ng": 1})";
  const auto findings = JudgeConfig(path);
  std::filesystem::remove(path);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].level, Level::kProblem);
  EXPECT_NE((findings[0].text + findings[0].remedy).find("gradient_clipping"), std::string::npos);
}

TEST(Doctor, LooksAroundHere) {
  const MachineFacts facts = LookAround();
  EXPECT_GT(facts.memory, 0);
  EXPECT_GT(facts.copy_rate, 0);
  EXPECT_GE(facts.cores, 1);
  EXPECT_FALSE(Judge(facts).empty());
}

}  // namespace
}  // namespace ullage::cli
