#include <unistd.h>

#include <cctype>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "comm/c10d.h"
#include "comm/connect.h"
#include "ullage/error.h"

namespace ullage::comm {
namespace {

constexpr const char* kHowToStart =
    "start the ranks with ullage train --ranks N, torchrun, mpirun or srun, which set these "
    "variables; or unset them to run one rank";

std::optional<std::string> Variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::string Need(const char* name, const char* hint = kHowToStart) {
  auto value = Variable(name);
  if (!value) throw ConfigError(fmt::format("{} is not set", name), hint);
  return *value;
}

int Number(const char* name, const std::string& text, int least, int most) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < least || number > most) {
    throw ConfigError(
        fmt::format("{}='{}': expected a number from {} to {}", name, text, least, most),
        kHowToStart);
  }
  return number;
}

// A launcher and the variables in which it tells a process who it is.
struct Launcher {
  const char* name;
  const char* rank;
  const char* world_size;
  const char* local_rank;  // may be absent from the environment
  const char* local_size;  // null where the launcher does not tell
  // Whether the size alone says that this launcher was there. A shell inside a Slurm allocation
  // has SLURM_NTASKS, and a process started from it is nobody's rank.
  bool size_counts;
};

constexpr Launcher kLaunchers[] = {
    {"ullage", "ULLAGE_RANK", "ULLAGE_WORLD_SIZE", "ULLAGE_LOCAL_RANK", nullptr, true},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", true},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", false},
    // Before PMI, which srun sets too.
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr, false},
    {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", false},
};

std::string MasterStore(const char* hint) {
  const std::string host = Need("MASTER_ADDR", hint);
  const int port = Number("MASTER_PORT", Need("MASTER_PORT", hint), 1, 65535);
  const bool v6 = host.find(':') != std::string::npos;
  return v6 ? fmt::format("tcp:[{}]:{}", host, port) : fmt::format("tcp:{}:{}", host, port);
}

// A file that the ranks of one mpirun share: its name holds what mpirun calls the job, or else the
// process that has started all of them.
std::string FileStoreOfJob() {
  std::string job = fmt::format("parent-{}", ::getppid());
  for (const char* name :
       {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid", "PMI_JOBID"}) {
    if (const auto value = Variable(name)) {
      job = *value;
      break;
    }
  }
  for (char& c : job) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-') c = '_';
  }
  const auto path = std::filesystem::temp_directory_path() /
                    fmt::format("ullage-{}-{}", ::getuid(), job.substr(0, 100));
  return "file:" + path.string();
}

std::string OwnStore() {
  const std::string store = Need("ULLAGE_STORE");
  bool good = store.starts_with("file:") && store.size() > 5;
  try {
    good = good || ParseTcpStore(store).port != 0;
  } catch (const ConfigError&) {
    good = false;
  }
  if (!good) {
    throw ConfigError(fmt::format("ULLAGE_STORE='{}': expected file:PATH or tcp:HOST:PORT", store),
                      kHowToStart);
  }
  return store;
}

std::string StoreOf(const Launcher& launcher, int world_size) {
  const std::string_view name = launcher.name;
  if (name == "ullage") return OwnStore();
  if (name == "torchrun") return MasterStore(kHowToStart);
  if (Variable("MASTER_ADDR")) {
    return MasterStore("set MASTER_PORT to a free port of the host in MASTER_ADDR");
  }
  if (name == "srun") {
    return MasterStore(
        "export MASTER_ADDR (the first host of the job: scontrol show hostnames | head -n 1) and "
        "MASTER_PORT (a free port there) before srun; to run one rank inside an allocation, unset "
        "SLURM_PROCID");
  }
  const auto local_size = Variable(launcher.local_size);
  if (local_size && Number(launcher.local_size, *local_size, 1, world_size) == world_size) {
    return FileStoreOfJob();
  }
  return MasterStore(
      "mpirun started ranks on several hosts: pass the host of rank 0 and a free port there, "
      "mpirun -x MASTER_ADDR=... -x MASTER_PORT=...");
}

Place PlaceFrom(const Launcher& launcher) {
  constexpr int kMostRanks = 1 << 20;
  Place place;
  place.launcher = launcher.name;
  place.world_size = Number(launcher.world_size, Need(launcher.world_size), 1, kMostRanks);
  place.rank = Number(launcher.rank, Need(launcher.rank), 0, place.world_size - 1);
  const auto local = Variable(launcher.local_rank);
  place.local_rank =
      local ? Number(launcher.local_rank, *local, 0, place.world_size - 1) : place.rank;
  if (place.world_size == 1) return place;
  place.store = StoreOf(launcher, place.world_size);
  if (place.launcher == "torchrun" && Variable("TORCHELASTIC_USE_AGENT_STORE") == "True") {
    place.store_is_served = true;
    place.store_prefix = fmt::format("ullage/{}/{}", Variable("TORCHELASTIC_RUN_ID").value_or("-"),
                                     Variable("TORCHELASTIC_RESTART_COUNT").value_or("0"));
  }
  return place;
}

}  // namespace

Place PlaceFromEnvironment() {
  for (const Launcher& launcher : kLaunchers) {
    if (Variable(launcher.rank) || (launcher.size_counts && Variable(launcher.world_size))) {
      return PlaceFrom(launcher);
    }
  }
  return {};
}

}  // namespace ullage::comm
