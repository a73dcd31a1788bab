#include "cli/doctor.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "base/bytes.h"
#include "base/parallel.h"
#include "cli/commands.h"
#include "tiers/available_memory.h"
#include "tiers/numa.h"
#include "torchx/device.h"
#include "ullage/error.h"
#include "ullage/settings.h"

namespace ullage::cli {
namespace {

constexpr double kGB = 1e9;

std::string ReadText(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  ...".
std::string DriverVersion() {
  std::istringstream words(ReadText("/proc/driver/nvidia/version"));
  for (std::string word; words >> word;) {
    const bool is_version =
        std::ranges::count(word, '.') >= 1 &&
        std::ranges::all_of(word, [](char c) { return (c >= '0' && c <= '9') || c == '.'; });
    if (is_version) return word;
  }
  return "";
}

// "always [madvise] never": the one in brackets.
std::string ChosenHugePages() {
  const std::string text = ReadText("/sys/kernel/mm/transparent_hugepage/enabled");
  const std::size_t begin = text.find('['), end = text.find(']');
  return begin == std::string::npos || end == std::string::npos
             ? ""
             : text.substr(begin + 1, end - begin - 1);
}

double CopyRate() {
  constexpr std::size_t kBytes = std::size_t{128} << 20;
  const auto from = std::make_unique<char[]>(kBytes), to = std::make_unique<char[]>(kBytes);
  std::memset(from.get(), 1, kBytes);
  double best = 0;
  for (int i = 0; i < 4; ++i) {
    const auto start = std::chrono::steady_clock::now();
    std::memcpy(to.get(), from.get(), kBytes);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, 2 * static_cast<double>(kBytes) / seconds.count());
  }
  return best;
}

// Kernels run on devices of the same major capability and at least the minor one.
bool HasKernelsFor(const MachineFacts& facts, const torchx::DeviceFacts& device) {
  return std::ranges::any_of(facts.capabilities, [&](int built) {
    return built / 10 == device.major && built % 10 <= device.minor;
  });
}

void JudgeCuda(const MachineFacts& facts, std::vector<Finding>& findings) {
  const auto add = [&](Level level, std::string text, std::string remedy = "") {
    findings.push_back({level, std::move(text), std::move(remedy)});
  };
  if (facts.built_with_cuda == 0) {
    return facts.has_nvidia
               ? add(Level::kProblem, "this build has no CUDA, and the machine has a GPU",
                     "install nvcc (PyPI: nvidia-cuda-nvcc) and run scripts/setup.sh again")
               : add(Level::kFine, "built for the CPU alone");
  }
  const std::string oldest = OldestDriver(facts.built_with_cuda);
  const std::string built =
      fmt::format("CUDA {}.{}", facts.built_with_cuda / 1000, facts.built_with_cuda % 1000 / 10);
  if (facts.driver.empty()) {
    add(facts.has_nvidia ? Level::kProblem : Level::kNote, "no NVIDIA driver is loaded",
        fmt::format("{} needs driver {} or newer; without one use --device cpu", built, oldest));
  } else if (IsOlder(facts.driver, oldest)) {
    add(Level::kProblem, fmt::format("driver {} is too old for {}", facts.driver, built),
        fmt::format("install driver {} or newer", oldest));
  } else {
    add(Level::kFine, fmt::format("driver {} runs {} (from {})", facts.driver, built, oldest));
  }
  if (!facts.why_no_cuda.empty()) add(Level::kNote, facts.why_no_cuda, "use --device cpu");
  for (std::size_t d = 0; d < facts.devices.size(); ++d) {
    const torchx::DeviceFacts& device = facts.devices[d];
    const std::string name = fmt::format("device {}: {}, compute capability {}.{}", d, device.name,
                                         device.major, device.minor);
    if (!HasKernelsFor(facts, device)) {
      add(Level::kProblem, name + ": this build has no kernels for it",
          fmt::format("configure with -DCMAKE_CUDA_ARCHITECTURES={}{}", device.major,
                      device.minor));
      continue;
    }
    add(Level::kFine, fmt::format("{}, {} of {} free, {:.1f} GB/s to it and {:.1f} GB/s from it",
                                  name, FormatBytes(device.free), FormatBytes(device.total),
                                  device.to_device / kGB, device.from_device / kGB));
    const std::int64_t used = device.total - device.free;
    if (used > std::int64_t{2} << 30) {
      add(Level::kNote,
          fmt::format("device {}: {} of it are taken, by other processes and this one's context", d,
                      FormatBytes(used)),
          "nvidia-smi shows who; ullage.device_memory must leave room for them");
    }
    if (device.reaches.size() + 1 < facts.devices.size()) {
      add(Level::kNote, fmt::format("device {} cannot map the memory of all others", d),
          "ranks on it exchange over the host, which is slower");
    }
  }
}

void JudgeHost(const MachineFacts& facts, std::vector<Finding>& findings) {
  const auto add = [&](Level level, std::string text, std::string remedy = "") {
    findings.push_back({level, std::move(text), std::move(remedy)});
  };
  add(Level::kFine,
      fmt::format("host: {} of memory, {} can be had ({}), {} cores, {} memory {}, {:.1f} GB/s by "
                  "one core",
                  FormatBytes(facts.memory), FormatBytes(facts.available), facts.available_bound,
                  facts.cores, facts.memory_nodes, facts.memory_nodes == 1 ? "node" : "nodes",
                  facts.copy_rate / kGB));
  if (facts.available < facts.memory / 2) {
    add(Level::kNote,
        fmt::format("less than half of the host's memory can be had: {} sets it",
                    facts.available_bound),
        "offloaded state must fit into it: raise the container's limit, or end what holds memory");
  }
  if (facts.memlock < 0) {
    add(Level::kFine, "memory can be page-locked without limit");
  } else {
    const bool has_device = !facts.devices.empty();
    add(has_device && facts.memlock < facts.memory / 2 ? Level::kNote : Level::kFine,
        fmt::format("at most {} can be locked by mlock (ulimit -l)", FormatBytes(facts.memlock)),
        has_device
            ? "CUDA's own page-locking is not bound by it; where it is refused all the same, "
              "raise it (ulimit -l unlimited, docker run --ulimit memlock=-1)"
            : "");
  }
  if (facts.huge_pages == "never") {
    add(Level::kNote, "transparent huge pages are off",
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, for faster state on the host");
  }
  if (!facts.omp_threads.empty() && facts.omp_threads == "1" && facts.cores > 1) {
    add(Level::kNote,
        fmt::format("OMP_NUM_THREADS=1 on {} cores: operators on the CPU use one", facts.cores),
        "a launcher may have set it; the optimizer's threads do not depend on it, for operators "
        "use "
        "--threads");
  }
}

const char* Mark(Level level) {
  return level == Level::kFine ? "ok     " : level == Level::kNote ? "note   " : "PROBLEM";
}

}  // namespace

std::string OldestDriver(int cuda) {
  if (cuda >= 13000) return "580.65.06";
  return "525.60.13";
}

bool IsOlder(const std::string& a, const std::string& b) {
  const auto parts = [](const std::string& text) {
    std::vector<int> numbers;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, '.');) {
      numbers.push_back(std::atoi(part.c_str()));
    }
    return numbers;
  };
  return parts(a) < parts(b);
}

MachineFacts LookAround() {
  MachineFacts facts;
  facts.why_no_cuda = torchx::WhyNoCuda();
  facts.has_nvidia = ::access("/dev/nvidia0", F_OK) == 0;
  facts.driver = DriverVersion();
  facts.built_with_cuda = torchx::BuiltWithCuda();
  facts.capabilities = torchx::BuiltCapabilities();
  facts.devices = torchx::DescribeCudaDevices();
  facts.torch = ULLAGE_TORCH_VERSION;
  facts.memory = static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  const tiers::AvailableMemory available = tiers::FindAvailableMemory();
  facts.available = available.bytes;
  facts.available_bound = available.bound;
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    facts.memlock = static_cast<std::int64_t>(limit.rlim_cur);
  }
  facts.huge_pages = ChosenHugePages();
  facts.memory_nodes = static_cast<int>(tiers::MemoryNodes().size());
  facts.cores = UsableCores();
  if (const char* threads = std::getenv("OMP_NUM_THREADS")) facts.omp_threads = threads;
  facts.copy_rate = CopyRate();
  return facts;
}

std::vector<Finding> Judge(const MachineFacts& facts) {
  std::vector<Finding> findings;
  findings.push_back({Level::kFine, fmt::format("torch {}", facts.torch), ""});
  JudgeCuda(facts, findings);
  JudgeHost(facts, findings);
  return findings;
}

std::vector<Finding> JudgeConfig(const std::string& path) {
  std::vector<Finding> findings;
  try {
    const Settings settings = Settings::FromFile(path);
    findings.push_back({Level::kFine, fmt::format("{} can be read", path), ""});
    for (const std::string& line : settings.no_effect) {
      findings.push_back({Level::kNote, line, ""});
    }
    settings.ResolveBatchSizes(1);
  } catch (const Error& error) {
    const std::string text = error.what();
    const std::size_t end = text.find("\nhint: ");
    findings.push_back({Level::kProblem, text.substr(0, end),
                        end == std::string::npos ? "" : text.substr(end + 7)});
  }
  return findings;
}

int RunDoctor(const DoctorArguments& arguments) {
  std::vector<Finding> findings = Judge(LookAround());
  if (!arguments.config.empty()) {
    for (Finding& finding : JudgeConfig(arguments.config)) findings.push_back(std::move(finding));
  }
  if (arguments.json) {
    auto list = nlohmann::ordered_json::array();
    for (const Finding& finding : findings) {
      constexpr const char* kLevels[] = {"ok", "note", "problem"};
      list.push_back({{"level", kLevels[static_cast<int>(finding.level)]},
                      {"text", finding.text},
                      {"remedy", finding.remedy}});
    }
    fmt::print("{}\n", list.dump(1));
  } else {
    for (const Finding& finding : findings) {
      fmt::print("{} {}\n", Mark(finding.level), finding.text);
      if (!finding.remedy.empty()) fmt::print("        {}\n", finding.remedy);
    }
  }
  return std::ranges::any_of(findings, [](const Finding& f) { return f.level == Level::kProblem; });
}

}  // namespace ullage::cli
