// What moves bytes between an open file and memory underneath DiskFile: io_uring, or a pool of
// threads where that is refused, or in tests one that fails on purpose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace ullage::tiers {

enum class DiskAction : std::uint8_t { kRead, kWrite };

// One system call's worth: it may move less than `bytes`, as pread and pwrite may.
struct DiskOperation {
  DiskAction action = DiskAction::kRead;
  std::int64_t offset = 0;
  std::byte* memory = nullptr;  // only read from when writing
  std::int64_t bytes = 0;
  void* token = nullptr;  // handed to the completion; not null
};

// Called once for each operation that was accepted, from a thread of the backend, never from
// within Submit. `result` is the bytes moved (0 at the end of the file) or minus an errno.
using DiskCompletion = std::function<void(void* token, std::int64_t result)>;

class DiskBackend {
 public:
  virtual ~DiskBackend() = default;  // no operation is under way

  // Starts the operation and returns at once. 0, or the errno when it was not accepted: then no
  // completion follows. Any thread, also from within a completion.
  virtual int Submit(const DiskOperation& operation) = 0;

  virtual const char* name() const = 0;  // "io_uring", "threads"
};

struct DiskBackendSettings {
  int fd = -1;           // stays the caller's
  int queue_depth = 32;  // never more operations under way than this
  int threads = 4;       // of the pool
  bool direct = false;   // the file is open with O_DIRECT
};

using DiskBackendMaker =
    std::function<std::unique_ptr<DiskBackend>(const DiskBackendSettings&, DiskCompletion)>;

// Null where the system refuses io_uring, with the reason in `refusal`: kernels before 5.6, and
// the filters on system calls that containers have.
std::unique_ptr<DiskBackend> MakeUringBackend(const DiskBackendSettings& settings,
                                              DiskCompletion complete, std::string& refusal);

// pread and pwrite. Throws UnsupportedError when the system gives no thread.
std::unique_ptr<DiskBackend> MakeThreadBackend(const DiskBackendSettings& settings,
                                               DiskCompletion complete);

// io_uring; where it is refused, threads, and one warning says so.
std::unique_ptr<DiskBackend> MakeBestBackend(const DiskBackendSettings& settings,
                                             DiskCompletion complete);

}  // namespace ullage::tiers
