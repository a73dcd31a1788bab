// The disk tier of one rank: a preallocated file, read and written by requests that are under way
// at the same time.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tiers/disk_backend.h"
#include "tiers/scratch_file.h"

namespace ullage::tiers {

struct DiskOptions {
  int queue_depth = 32;  // operations under way at once, 1 to 4096
  int threads = 4;       // of the pool, where io_uring is refused; 1 to 256
  bool direct = true;    // O_DIRECT where the file system has it
  // A request is split into operations of this size; a multiple of kDiskBlock.
  std::int64_t operation_bytes = std::int64_t{2} << 20;
  DiskBackendMaker backend = MakeBestBackend;
};

// Names a request. Tickets of one DiskFile differ for ever.
enum class DiskTicket : std::uint64_t {};

// Offsets, sizes and addresses are free. What lies on whole blocks of the file (kDiskBlock) and, in
// memory, on scratch().memory_alignment() moves without a copy; the rest goes through staging
// buffers of kStagingBytes, at most one for each operation under way.
//
// A ticket ends when Wait() returns or throws for it, or Done() returns true or throws. Until then
// the request's memory belongs to it, and so do the blocks that its range touches: no other request
// may touch a block that an open Write touches, or write one that an open Read touches, because
// part of a block is written by reading, changing and writing it all. Read() and Write() throw
// StateError for that, whatever the timing. So callers keep to regions of their own that start at
// multiples of kDiskBlock.
//
// A failed request throws IoError with path, offset, bytes and reason each time that it is asked
// for; what was being written is undefined then, the rest of the file and later requests are not
// touched by it.
//
// Any thread may call anything at any time; the destructor waits for what is under way.
class DiskFile {
 public:
  static constexpr std::int64_t kStagingBytes = std::int64_t{256} << 10;

  // Makes the file of `bytes` bytes, all zeros; see ScratchFile for its name, its life and the
  // errors. Throws ConfigError for options out of range.
  DiskFile(const std::string& folder, int rank, std::int64_t bytes,
           const DiskOptions& options = {});
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;
  ~DiskFile();

  // Start at once and return at once. Throw StateError for a range outside the file or one that
  // an open ticket holds.
  DiskTicket Read(std::int64_t offset, std::byte* to, std::int64_t bytes);
  DiskTicket Write(std::int64_t offset, const std::byte* from, std::int64_t bytes);

  // Until the bytes are in memory, or in the file for those who read it later through this object.
  void Wait(DiskTicket ticket);
  // The same without waiting: false while the request is under way.
  bool Done(DiskTicket ticket);

  std::int64_t bytes() const { return bytes_; }
  const ScratchFile& scratch() const { return scratch_; }
  const char* backend_name() const { return backend_->name(); }

 private:
  struct Request;
  struct Operation;
  using Requests = std::map<std::uint64_t, std::unique_ptr<Request>>;

  DiskTicket Start(DiskAction action, std::int64_t offset, std::byte* memory, std::int64_t bytes);
  void CheckFree(const Request& request) const;
  void Split(Request& request);
  void Cut(Request& request, std::int64_t offset, std::int64_t bytes);
  void Launch();
  int Launch(Operation& operation);
  void Complete(Operation& operation, std::int64_t result);
  void Advance(Operation& operation, std::int64_t moved);
  void Fail(Operation& operation, int error);
  void Finish(Operation& operation);
  bool End(std::uint64_t id);

  const DiskOptions options_;
  const std::int64_t bytes_;
  ScratchFile scratch_;

  std::mutex mutex_;
  std::condition_variable ended_;
  std::uint64_t next_id_ = 0;
  Requests open_;                                // not yet ended by Wait() or Done()
  std::map<std::uint64_t, std::string> failed_;  // texts of those that ended badly
  std::deque<Operation*> waiting_;               // for one that is under way to complete
  int under_way_ = 0;
  std::vector<std::unique_ptr<std::byte, void (*)(void*)>> staging_;  // not in use

  std::unique_ptr<DiskBackend> backend_;  // last: its threads end before what they use
};

}  // namespace ullage::tiers
