// GB/s of the disk tier, sequential, beside plain pread and pwrite on the same file in the same
// run.
//
//   disk_benchmark FOLDER [GB=2] [ROUNDS=5]
//
// Each row keeps a number of requests of 8 MiB open. Rows take turns within a round and the medians
// over the rounds are printed, so that noise of the machine falls on all alike. Plain calls are
// made by one thread, one at a time, on the same file: with O_DIRECT where the tier has it.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "tiers/disk_file.h"
#include "tiers/host_arena.h"
#include "ullage/error.h"

namespace {

using ullage::IoError;
using ullage::tiers::DiskAction;
using ullage::tiers::DiskFile;
using ullage::tiers::DiskOptions;
using ullage::tiers::DiskTicket;
using ullage::tiers::HostArena;
using ullage::tiers::MakeThreadBackend;

constexpr std::int64_t kRequest = std::int64_t{8} << 20;
constexpr int kDepths[] = {1, 4, 16};

// Transfers the whole file with `depth` requests open; each has its own piece of the arena.
void Tier(DiskFile& file, HostArena& arena, DiskAction action, int depth) {
  std::deque<DiskTicket> open;
  std::int64_t number = 0;
  for (std::int64_t at = 0; at < file.bytes(); at += kRequest, ++number) {
    if (static_cast<int>(open.size()) == depth) {
      file.Wait(open.front());
      open.pop_front();
    }
    std::byte* memory = arena.data() + number % depth * kRequest;
    open.push_back(action == DiskAction::kRead ? file.Read(at, memory, kRequest)
                                               : file.Write(at, memory, kRequest));
  }
  for (const DiskTicket ticket : open) file.Wait(ticket);
}

void Plain(DiskFile& file, HostArena& arena, DiskAction action) {
  for (std::int64_t at = 0; at < file.bytes(); at += kRequest) {
    for (std::int64_t done = 0; done < kRequest;) {
      std::byte* memory = arena.data() + done;
      const auto size = static_cast<std::size_t>(kRequest - done);
      const ssize_t moved = action == DiskAction::kRead
                                ? ::pread(file.scratch().fd(), memory, size, at + done)
                                : ::pwrite(file.scratch().fd(), memory, size, at + done);
      if (moved <= 0) throw IoError("a plain transfer failed");
      done += moved;
    }
  }
}

struct Row {
  std::string name;
  std::function<void(DiskAction)> run;
  std::vector<double> rates[2] = {};  // GB/s, by action
};

void Measure(Row& row, DiskAction action, std::int64_t bytes) {
  const auto start = std::chrono::steady_clock::now();
  row.run(action);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  row.rates[static_cast<int>(action)].push_back(1e-9 * static_cast<double>(bytes) /
                                                seconds.count());
}

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void Run(const std::string& folder, double gigabytes, int rounds) {
  const std::int64_t requests =
      std::max<std::int64_t>(static_cast<std::int64_t>(gigabytes * 1e9) / kRequest, kDepths[2]);
  const std::int64_t bytes = requests * kRequest;
  HostArena arena(kDepths[2] * kRequest);
  std::memset(arena.data(), 0x5a, static_cast<std::size_t>(arena.size()));

  DiskFile file(folder, 0, bytes);
  DiskOptions pool;
  pool.backend = MakeThreadBackend;
  DiskFile pooled(folder, 1, bytes, pool);
  fmt::print("{:.2f} GB in requests of 8 MiB, {}, addresses aligned to {}, {} rounds\n",
             1e-9 * static_cast<double>(bytes), file.scratch().direct() ? "O_DIRECT" : "page cache",
             file.scratch().memory_alignment(), rounds);

  std::vector<Row> rows;
  rows.push_back({"pread, pwrite", [&](DiskAction action) { Plain(file, arena, action); }});
  for (DiskFile* tier : {&file, &pooled}) {
    for (const int depth : kDepths) {
      rows.push_back(
          {fmt::format("{}, {} open", tier->backend_name(), depth),
           [&arena, tier, depth](DiskAction action) { Tier(*tier, arena, action, depth); }});
    }
  }
  // Before all: the first write of a block that was only allocated costs more.
  Tier(file, arena, DiskAction::kWrite, 1);
  Tier(pooled, arena, DiskAction::kWrite, 1);
  for (int round = 0; round < rounds; ++round) {
    for (const DiskAction action : {DiskAction::kWrite, DiskAction::kRead}) {
      for (Row& row : rows) Measure(row, action, bytes);
      std::ranges::reverse(rows);
    }
  }
  std::ranges::sort(rows, {}, &Row::name);
  fmt::print("{:<20} {:>10} {:>10}\n", "", "write GB/s", "read GB/s");
  for (const Row& row : rows) {
    fmt::print("{:<20} {:>10.2f} {:>10.2f}\n", row.name,
               Median(row.rates[static_cast<int>(DiskAction::kWrite)]),
               Median(row.rates[static_cast<int>(DiskAction::kRead)]));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4) {
    fmt::print(stderr, "usage: disk_benchmark FOLDER [GB=2] [ROUNDS=5]\n");
    return 2;
  }
  try {
    Run(argv[1], argc > 2 ? std::atof(argv[2]) : 2, argc > 3 ? std::max(std::atoi(argv[3]), 1) : 5);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
