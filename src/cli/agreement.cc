#include "cli/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "ullage/error.h"

namespace ullage::cli {

void Together(comm::Comm& comm, const std::function<void()>& body) {
  std::array<char, 4096> mine = {};
  std::exception_ptr error;
  try {
    body();
  } catch (const std::exception& thrown) {
    error = std::current_exception();
    const std::string text = thrown.what();
    std::memcpy(mine.data(), text.data(), std::min(text.size(), mine.size() - 1));
    if (text.empty()) mine[0] = ' ';
  }
  const auto all = FromAllRanks<char>(comm, std::span<const char>(mine), Item::kReady);
  for (int rank = 0; rank < comm.world_size(); ++rank) {
    const char* text = all.data() + mine.size() * static_cast<std::size_t>(rank);
    if (*text == '\0') continue;
    if (comm.rank() != 0) throw FailedElsewhere();
    if (rank == 0) std::rethrow_exception(error);
    throw Error(fmt::format("rank {}: {}", rank, text));
  }
}

}  // namespace ullage::cli
