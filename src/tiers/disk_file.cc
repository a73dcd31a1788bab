#include "tiers/disk_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tiers/disk_error.h"
#include "ullage/error.h"

namespace ullage::tiers {
namespace {

using StagingBuffer = std::unique_ptr<std::byte, void (*)(void*)>;

constexpr int kTries = 100;  // of an operation that is interrupted or refused for the moment

std::int64_t RoundDown(std::int64_t value, std::int64_t multiple) {
  return value / multiple * multiple;
}
std::int64_t RoundUp(std::int64_t value, std::int64_t multiple) {
  return RoundDown(value + multiple - 1, multiple);
}

void CheckOption(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return;
  throw ConfigError(fmt::format("disk tier: {} is {}", name, value),
                    fmt::format("give {} to {}", least, most));
}

const DiskOptions& Checked(const DiskOptions& options) {
  CheckOption("the queue depth", options.queue_depth, 1, 4096);
  CheckOption("the number of threads", options.threads, 1, 256);
  // One system call moves less than 2 GiB.
  CheckOption("the size of an operation", options.operation_bytes, kDiskBlock, 1 << 30);
  if (options.operation_bytes % kDiskBlock != 0) {
    throw ConfigError(
        fmt::format("disk tier: the size of an operation is {}", options.operation_bytes),
        fmt::format("give a multiple of {}", kDiskBlock));
  }
  return options;
}

std::int64_t CheckedBytes(std::int64_t bytes) {
  if (bytes >= 0 && bytes <= INT64_MAX - kDiskBlock) return bytes;
  throw StateError(fmt::format("disk tier: planned with a size of {} bytes", bytes),
                   "this is a fault of the plan; please report it");
}

}  // namespace

struct DiskFile::Request {
  std::uint64_t id = 0;
  DiskAction action = DiskAction::kRead;
  std::int64_t offset = 0;
  std::byte* memory = nullptr;
  std::int64_t bytes = 0;
  std::vector<std::unique_ptr<Operation>> operations;
  std::size_t unfinished = 0;  // operations
  std::string error;           // of the first that failed

  // The blocks that belong to it while it is open.
  std::int64_t first() const { return RoundDown(offset, kDiskBlock); }
  std::int64_t last() const { return RoundUp(offset + bytes, kDiskBlock); }
};

// A part of a request, moved in one go where the system does not move less. With `staged`, whole
// blocks move between the file and the staging buffer, and a part of them to or from the user's.
struct DiskFile::Operation {
  Request* request = nullptr;
  std::int64_t offset = 0;  // of the user's part in the file
  std::byte* memory = nullptr;
  std::int64_t bytes = 0;
  bool staged = false;
  StagingBuffer buffer{nullptr, std::free};
  bool filling = false;    // reading the blocks of which a write changes a part
  std::int64_t moved = 0;  // of io_bytes()
  int tries = 0;           // since something moved

  std::int64_t io_offset() const { return staged ? RoundDown(offset, kDiskBlock) : offset; }
  std::int64_t io_bytes() const {
    return staged ? RoundUp(offset + bytes, kDiskBlock) - io_offset() : bytes;
  }
  std::byte* io_memory() const { return staged ? buffer.get() : memory; }
  std::byte* staged_part() const { return buffer.get() + (offset - io_offset()); }
  DiskAction io_action() const { return filling ? DiskAction::kRead : request->action; }
};

DiskFile::DiskFile(const std::string& folder, int rank, std::int64_t bytes,
                   const DiskOptions& options)
    : options_(Checked(options)),
      bytes_(CheckedBytes(bytes)),
      scratch_(folder, rank, bytes, options.direct),
      backend_(
          options.backend({scratch_.fd(), options.queue_depth, options.threads, scratch_.direct()},
                          [this](void* token, std::int64_t result) {
                            Complete(*static_cast<Operation*>(token), result);
                          })) {
  staging_.reserve(static_cast<std::size_t>(options.queue_depth));  // a completion cannot fail
}

DiskFile::~DiskFile() {
  {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] {
      return std::ranges::all_of(open_, [](const auto& e) { return e.second->unfinished == 0; });
    });
  }
  backend_.reset();
}

DiskTicket DiskFile::Read(std::int64_t offset, std::byte* to, std::int64_t bytes) {
  return Start(DiskAction::kRead, offset, to, bytes);
}

DiskTicket DiskFile::Write(std::int64_t offset, const std::byte* from, std::int64_t bytes) {
  return Start(DiskAction::kWrite, offset, const_cast<std::byte*>(from), bytes);
}

DiskTicket DiskFile::Start(DiskAction action, std::int64_t offset, std::byte* memory,
                           std::int64_t bytes) {
  if (offset < 0 || bytes < 0 || offset > bytes_ || bytes > bytes_ - offset) {
    throw StateError(fmt::format("{}: {} bytes at offset {} are not inside its {} bytes",
                                 scratch_.path(), bytes, offset, bytes_),
                     "this is a fault of the plan; please report it");
  }
  auto request = std::make_unique<Request>();
  request->action = action;
  request->offset = offset;
  request->memory = memory;
  request->bytes = bytes;

  std::lock_guard lock(mutex_);
  CheckFree(*request);
  request->id = next_id_++;
  Split(*request);
  request->unfinished = request->operations.size();
  for (const auto& operation : request->operations) waiting_.push_back(operation.get());
  const DiskTicket ticket{request->id};
  open_.emplace(request->id, std::move(request));
  Launch();
  return ticket;
}

void DiskFile::CheckFree(const Request& request) const {
  if (request.bytes == 0) return;
  for (const auto& [id, other] : open_) {
    const bool writes = request.action == DiskAction::kWrite || other->action == DiskAction::kWrite;
    if (!writes || other->bytes == 0) continue;
    if (request.first() >= other->last() || other->first() >= request.last()) continue;
    const auto verb = [](DiskAction action) {
      return action == DiskAction::kRead ? "reading" : "writing";
    };
    throw StateError(
        fmt::format("{}: {} {} bytes at offset {} touches a block of {} bytes with {} {} bytes at "
                    "offset {}, which nobody has waited for",
                    scratch_.path(), verb(request.action), request.bytes, request.offset,
                    kDiskBlock, verb(other->action), other->bytes, other->offset),
        "wait for the earlier request, and keep regions apart by whole blocks");
  }
}

// Partial blocks at both ends by themselves, since only they must be read before they are written.
void DiskFile::Split(Request& request) {
  const std::int64_t end = request.offset + request.bytes;
  if (!scratch_.direct()) return Cut(request, request.offset, request.bytes);
  const std::int64_t middle = std::min(RoundUp(request.offset, kDiskBlock), end);
  const std::int64_t tail = std::max(middle, RoundDown(end, kDiskBlock));
  Cut(request, request.offset, middle - request.offset);
  Cut(request, middle, tail - middle);
  Cut(request, tail, end - tail);
}

void DiskFile::Cut(Request& request, std::int64_t offset, std::int64_t bytes) {
  std::byte* memory = request.memory + (offset - request.offset);
  const bool partial = bytes % kDiskBlock != 0;
  const bool misplaced = reinterpret_cast<std::uintptr_t>(memory) %
                             static_cast<std::uintptr_t>(scratch_.memory_alignment()) !=
                         0;
  const bool staged = scratch_.direct() && (partial || misplaced);
  const std::int64_t piece = staged ? kStagingBytes : options_.operation_bytes;
  for (std::int64_t at = 0; at < bytes; at += piece) {
    auto operation = std::make_unique<Operation>();
    operation->request = &request;
    operation->offset = offset + at;
    operation->memory = memory + at;
    operation->bytes = std::min(piece, bytes - at);
    operation->staged = staged;
    operation->filling = staged && partial && request.action == DiskAction::kWrite;
    request.operations.push_back(std::move(operation));
  }
}

// Starts what waits, as far as the queue depth allows. The rest of a request that has failed is
// not worth starting.
void DiskFile::Launch() {
  while (under_way_ < options_.queue_depth && !waiting_.empty()) {
    Operation& operation = *waiting_.front();
    waiting_.pop_front();
    if (!operation.request->error.empty()) {
      Finish(operation);
      continue;
    }
    if (const int error = Launch(operation); error != 0) Fail(operation, error);
  }
}

int DiskFile::Launch(Operation& operation) {
  if (operation.staged && operation.buffer == nullptr) {
    if (staging_.empty()) {
      operation.buffer.reset(
          static_cast<std::byte*>(std::aligned_alloc(kDiskBlock, kStagingBytes)));
      if (operation.buffer == nullptr) return ENOMEM;
    } else {
      operation.buffer = std::move(staging_.back());
      staging_.pop_back();
    }
    if (operation.request->action == DiskAction::kWrite && !operation.filling) {
      std::memcpy(operation.staged_part(), operation.memory,
                  static_cast<std::size_t>(operation.bytes));
    }
  }
  const int error =
      backend_->Submit({operation.io_action(), operation.io_offset() + operation.moved,
                        operation.io_memory() + operation.moved,
                        operation.io_bytes() - operation.moved, &operation});
  if (error == 0) ++under_way_;
  return error;
}

void DiskFile::Complete(Operation& operation, std::int64_t result) {
  std::lock_guard lock(mutex_);
  --under_way_;
  if (result == 0) {
    // The end of a file that has its full size from the start.
    Fail(operation, operation.io_action() == DiskAction::kRead ? ENODATA : ENOSPC);
  } else if (result > 0) {
    Advance(operation, result);
  } else if ((result == -EINTR || result == -EAGAIN || result == -ECANCELED) &&
             ++operation.tries < kTries) {
    // ECANCELED: the thread that submitted it has ended, and the kernel gave up its requests.
    waiting_.push_front(&operation);
  } else {
    Fail(operation, static_cast<int>(-result));
  }
  Launch();
}

void DiskFile::Advance(Operation& operation, std::int64_t moved) {
  const std::int64_t before = operation.moved;
  operation.moved += moved;
  if (operation.moved < operation.io_bytes()) {
    // O_DIRECT goes on at a block only.
    if (scratch_.direct()) operation.moved = RoundDown(operation.moved, kDiskBlock);
    operation.tries = operation.moved > before ? 0 : operation.tries + 1;
    if (operation.tries >= kTries) return Fail(operation, EIO);
    waiting_.push_front(&operation);
    return;
  }
  operation.tries = 0;
  const auto size = static_cast<std::size_t>(operation.bytes);
  if (operation.filling) {
    operation.filling = false;
    operation.moved = 0;
    std::memcpy(operation.staged_part(), operation.memory, size);
    waiting_.push_front(&operation);
    return;
  }
  if (operation.staged && operation.request->action == DiskAction::kRead) {
    std::memcpy(operation.memory, operation.staged_part(), size);
  }
  Finish(operation);
}

void DiskFile::Fail(Operation& operation, int error) {
  Request& request = *operation.request;
  if (request.error.empty()) {
    request.error =
        DiskError(scratch_.path(), operation.io_action() == DiskAction::kRead ? "read" : "write",
                  operation.io_offset() + operation.moved, operation.io_bytes() - operation.moved,
                  error)
            .what();
  }
  Finish(operation);
}

void DiskFile::Finish(Operation& operation) {
  if (operation.buffer != nullptr) staging_.push_back(std::move(operation.buffer));
  if (--operation.request->unfinished == 0) ended_.notify_all();
}

// Whether the request has ended, well; throws when it ended badly.
bool DiskFile::End(std::uint64_t id) {
  if (id >= next_id_) {
    throw StateError(fmt::format("{}: ticket {} was never given out", scratch_.path(), id),
                     "wait for tickets on the file that gave them");
  }
  if (const auto found = open_.find(id); found != open_.end()) {
    if (found->second->unfinished > 0) return false;
    if (!found->second->error.empty()) failed_.emplace(id, std::move(found->second->error));
    open_.erase(found);
  }
  if (const auto found = failed_.find(id); found != failed_.end()) throw IoError(found->second);
  return true;
}

void DiskFile::Wait(DiskTicket ticket) {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return End(static_cast<std::uint64_t>(ticket)); });
}

bool DiskFile::Done(DiskTicket ticket) {
  std::lock_guard lock(mutex_);
  return End(static_cast<std::uint64_t>(ticket));
}

}  // namespace ullage::tiers
