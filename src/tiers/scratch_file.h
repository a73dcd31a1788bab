// A preallocated file that exists as long as its owner: the disk tier's bytes of one rank.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace ullage::tiers {

inline constexpr std::int64_t kDiskBlock = 4096;  // what O_DIRECT moves in multiples of

// The two system calls that not every file system has, so that tests can be without them.
struct ScratchFileCalls {
  std::function<int(int fd, std::int64_t offset, std::int64_t bytes)> allocate;  // 0 or an errno
  std::function<int(int fd)> set_direct;                                         // 0 or an errno
};
ScratchFileCalls SystemScratchFileCalls();

// The file is called ullage-rank<rank>-pid<pid>-<number>.offload and is locked (flock) while it is
// in use. The destructor deletes it. A process that was killed leaves it behind, unlocked: the next
// ScratchFile of the same user in that folder deletes it and says so.
class ScratchFile {
 public:
  // Makes a file of `bytes` bytes, rounded up to kDiskBlock, whose blocks are all allocated and
  // read as zeros. `direct` asks for O_DIRECT; where the file system has none, a warning says so.
  // Throws IoError, and leaves nothing behind, when the folder does not exist, cannot be written
  // to, or lacks the space.
  ScratchFile(const std::string& folder, int rank, std::int64_t bytes, bool direct,
              const ScratchFileCalls& calls = SystemScratchFileCalls());
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  ~ScratchFile();

  const std::string& path() const { return path_; }
  int fd() const { return fd_; }
  std::int64_t bytes() const { return bytes_; }  // a multiple of kDiskBlock
  bool direct() const { return direct_; }
  // What addresses of memory must be multiples of for direct transfers; 1 without O_DIRECT.
  std::int64_t memory_alignment() const { return memory_alignment_; }

 private:
  void Create(const std::string& folder, int rank);
  void Allocate(const std::string& folder, const ScratchFileCalls& calls);
  void MakeDirect(const ScratchFileCalls& calls);
  void Delete();

  std::string path_;
  int fd_ = -1;
  std::int64_t bytes_ = 0;
  bool direct_ = false;
  std::int64_t memory_alignment_ = 1;
};

}  // namespace ullage::tiers
