#include "tiers/populate.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <thread>
#include <vector>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; glibc 2.35 does not name it
#endif

namespace ullage::tiers {
namespace {

// Large enough to hide the system call, a multiple of a huge page, small enough to share out.
constexpr std::int64_t kPieceBytes = std::int64_t{64} << 20;

int PopulatePiece(std::byte* start, std::int64_t bytes) {
  while (::madvise(start, static_cast<std::size_t>(bytes), MADV_POPULATE_WRITE) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno != EINVAL) return errno;
    // An older kernel.
    static const std::int64_t page = ::sysconf(_SC_PAGESIZE);
    for (std::int64_t at = 0; at < bytes; at += page) {
      *reinterpret_cast<volatile std::byte*>(start + at) = std::byte{0};
    }
    return 0;
  }
  return 0;
}

}  // namespace

int PopulatePages(std::byte* start, std::int64_t bytes, int threads) {
  std::atomic<std::int64_t> next = 0;
  std::atomic<int> error = 0;
  const auto work = [&] {
    while (error == 0) {
      const std::int64_t at = next.fetch_add(kPieceBytes);
      if (at >= bytes) return;
      const int result = PopulatePiece(start + at, std::min(kPieceBytes, bytes - at));
      if (result != 0) error = result;
    }
  };
  const std::int64_t pieces = (bytes + kPieceBytes - 1) / kPieceBytes;
  std::vector<std::jthread> helpers;
  try {
    for (std::int64_t i = 1; i < std::min<std::int64_t>(threads, pieces); ++i) {
      helpers.emplace_back(work);
    }
  } catch (const std::system_error&) {
    // No more threads to be had: those that run, and this one, do it all.
  }
  work();
  helpers.clear();
  return error;
}

}  // namespace ullage::tiers
