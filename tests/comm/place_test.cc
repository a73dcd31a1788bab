// What the variables of each launcher mean.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "comm/ranks.h"

namespace ullage::comm {
namespace {

using Variables = std::map<std::string, std::string>;

constexpr const char* kAll[] = {"ULLAGE_RANK",
                                "ULLAGE_WORLD_SIZE",
                                "ULLAGE_LOCAL_RANK",
                                "ULLAGE_STORE",
                                "RANK",
                                "WORLD_SIZE",
                                "LOCAL_RANK",
                                "LOCAL_WORLD_SIZE",
                                "MASTER_ADDR",
                                "MASTER_PORT",
                                "TORCHELASTIC_USE_AGENT_STORE",
                                "TORCHELASTIC_RESTART_COUNT",
                                "TORCHELASTIC_RUN_ID",
                                "OMPI_COMM_WORLD_RANK",
                                "OMPI_COMM_WORLD_SIZE",
                                "OMPI_COMM_WORLD_LOCAL_RANK",
                                "OMPI_COMM_WORLD_LOCAL_SIZE",
                                "OMPI_MCA_ess_base_jobid",
                                "OMPI_MCA_orte_ess_jobid",
                                "PMIX_NAMESPACE",
                                "PMI_RANK",
                                "PMI_SIZE",
                                "PMI_JOBID",
                                "MPI_LOCALRANKID",
                                "MPI_LOCALNRANKS",
                                "SLURM_PROCID",
                                "SLURM_NTASKS",
                                "SLURM_LOCALID"};

// The environment as `variables` say, for the life of a test.
Place PlaceWith(const Variables& variables) {
  for (const char* name : kAll) unsetenv(name);
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  struct Restore {
    ~Restore() {
      for (const char* name : kAll) unsetenv(name);
    }
  } restore;
  return PlaceFromEnvironment();
}

std::string Refusal(const Variables& variables) {
  try {
    PlaceWith(variables);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

Variables With(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

Variables Without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

const Variables kOwn = {{"ULLAGE_RANK", "1"},
                        {"ULLAGE_WORLD_SIZE", "4"},
                        {"ULLAGE_LOCAL_RANK", "1"},
                        {"ULLAGE_STORE", "file:/tmp/x"}};
const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"MASTER_ADDR", "node7"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                             {"TORCHELASTIC_RESTART_COUNT", "2"},
                             {"TORCHELASTIC_RUN_ID", "r7"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                            {"PMIX_NAMESPACE", "job/1@7"}};
const Variables kSlurm = {{"SLURM_PROCID", "3"},
                          {"SLURM_NTASKS", "4"},
                          {"SLURM_LOCALID", "1"},
                          {"MASTER_ADDR", "fd00::7"},
                          {"MASTER_PORT", "1234"}};

TEST(Place, OneRankWhereNoLauncherWasThere) {
  const Place place = PlaceWith({{"SLURM_NTASKS", "4"}});  // a shell inside an allocation
  EXPECT_EQ(place.rank, 0);
  EXPECT_EQ(place.world_size, 1);
  EXPECT_EQ(place.store, "");
  EXPECT_EQ(place.launcher, "none");
}

TEST(Place, OwnLauncher) {
  const Place place = PlaceWith(kOwn);
  EXPECT_EQ(place.rank, 1);
  EXPECT_EQ(place.world_size, 4);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.store, "file:/tmp/x");
  EXPECT_FALSE(place.store_is_served);
  EXPECT_EQ(place.launcher, "ullage");
}

TEST(Place, OwnLauncherGoesBeforeTheOneItWasStartedFrom) {
  Variables both = kSlurm;
  both.insert(kOwn.begin(), kOwn.end());
  EXPECT_EQ(PlaceWith(both).launcher, "ullage");
}

TEST(Place, TorchrunServesTheStoreItself) {
  const Place place = PlaceWith(kTorchrun);
  EXPECT_EQ(place.rank, 5);
  EXPECT_EQ(place.world_size, 8);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.store, "tcp:node7:29500");
  EXPECT_TRUE(place.store_is_served);
  EXPECT_EQ(place.store_prefix, "ullage/r7/2");  // a restarted attempt does not see old keys
  EXPECT_EQ(place.launcher, "torchrun");
  EXPECT_FALSE(PlaceWith(With(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "False")).store_is_served);
}

TEST(Place, MpirunOnOneHostNeedsNoAddress) {
  const Place place = PlaceWith(kOpenMpi);
  EXPECT_EQ(place.rank, 2);
  EXPECT_EQ(place.local_rank, 2);
  EXPECT_EQ(place.launcher, "mpirun");
  EXPECT_TRUE(place.store.starts_with("file:/")) << place.store;
  EXPECT_TRUE(place.store.ends_with("-job_1_7")) << place.store;
}

TEST(Place, MpirunOnSeveralHostsNeedsOne) {
  const Variables spread = With(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "2");
  const std::string refusal = Refusal(spread);
  EXPECT_TRUE(refusal.starts_with("MASTER_ADDR is not set")) << refusal;
  EXPECT_NE(refusal.find("mpirun -x MASTER_ADDR"), std::string::npos);
  Variables told = With(With(spread, "MASTER_ADDR", "10.0.0.1"), "MASTER_PORT", "77");
  EXPECT_EQ(PlaceWith(told).store, "tcp:10.0.0.1:77");
}

TEST(Place, MpichAndIntelMpi) {
  const Place place = PlaceWith(
      {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}});
  EXPECT_EQ(place.rank, 1);
  EXPECT_EQ(place.world_size, 2);
  EXPECT_EQ(place.launcher, "mpirun");
  EXPECT_NE(place.store.find("parent-"), std::string::npos) << place.store;
}

TEST(Place, Srun) {
  const Place place = PlaceWith(kSlurm);
  EXPECT_EQ(place.rank, 3);
  EXPECT_EQ(place.world_size, 4);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.store, "tcp:[fd00::7]:1234");
  EXPECT_EQ(place.launcher, "srun");
  const std::string refusal = Refusal(Without(kSlurm, "MASTER_ADDR"));
  EXPECT_TRUE(refusal.starts_with("MASTER_ADDR is not set")) << refusal;
  EXPECT_NE(refusal.find("scontrol"), std::string::npos);
}

TEST(Place, MalformedValuesNameTheirVariable) {
  const std::pair<Variables, std::string> cases[] = {
      {With(kOwn, "ULLAGE_RANK", "4"), "ULLAGE_RANK='4': expected a number from 0 to 3"},
      {With(kOwn, "ULLAGE_RANK", "1x"), "ULLAGE_RANK='1x'"},
      {With(kOwn, "ULLAGE_RANK", "-1"), "ULLAGE_RANK='-1'"},
      {With(kOwn, "ULLAGE_WORLD_SIZE", "0"), "ULLAGE_WORLD_SIZE='0'"},
      {With(kOwn, "ULLAGE_WORLD_SIZE", "99999999999999999999"), "ULLAGE_WORLD_SIZE='999"},
      {With(kOwn, "ULLAGE_LOCAL_RANK", "q"), "ULLAGE_LOCAL_RANK='q'"},
      {With(kOwn, "ULLAGE_STORE", "/tmp/x"), "ULLAGE_STORE='/tmp/x'"},
      {With(kOwn, "ULLAGE_STORE", "tcp:host"), "ULLAGE_STORE='tcp:host'"},
      {With(kOwn, "ULLAGE_STORE", "tcp:host:70000"), "ULLAGE_STORE='tcp:host:70000'"},
      {With(kOwn, "ULLAGE_STORE", "file:"), "ULLAGE_STORE='file:'"},
      {Without(kOwn, "ULLAGE_STORE"), "ULLAGE_STORE is not set"},
      {Without(kOwn, "ULLAGE_RANK"), "ULLAGE_RANK is not set"},
      {Without(kTorchrun, "WORLD_SIZE"), "WORLD_SIZE is not set"},
      {Without(kTorchrun, "RANK"), "RANK is not set"},
      {Without(kTorchrun, "MASTER_PORT"), "MASTER_PORT is not set"},
      {With(kTorchrun, "MASTER_PORT", "http"), "MASTER_PORT='http'"},
      {With(kTorchrun, "MASTER_PORT", "0"), "MASTER_PORT='0'"},
      {With(kOpenMpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "9"), "OMPI_COMM_WORLD_LOCAL_SIZE='9'"},
      {Without(kSlurm, "SLURM_NTASKS"), "SLURM_NTASKS is not set"},
  };
  for (const auto& [variables, expected] : cases) {
    const std::string refusal = Refusal(variables);
    EXPECT_TRUE(refusal.starts_with(expected)) << expected << " but: " << refusal;
    EXPECT_NE(refusal.find("hint:"), std::string::npos) << refusal;
  }
}

TEST(Place, OneRankOfALauncherNeedsNoStore) {
  EXPECT_EQ(PlaceWith({{"ULLAGE_RANK", "0"}, {"ULLAGE_WORLD_SIZE", "1"}}).store, "");
  EXPECT_EQ(PlaceWith({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}).world_size, 1);
}

}  // namespace
}  // namespace ullage::comm
