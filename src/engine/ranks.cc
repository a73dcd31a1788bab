#include "ullage/ranks.h"

#include <fmt/format.h>

#include "comm/comm.h"
#include "comm/connect.h"
#include "ullage/error.h"

namespace ullage {

std::shared_ptr<Ranks> Ranks::FromEnvironment(std::chrono::seconds timeout) {
  return std::make_shared<Ranks>(comm::Connect(comm::PlaceFromEnvironment(), timeout));
}

std::shared_ptr<Ranks> Ranks::Imagined(int rank, int world_size) {
  return std::make_shared<Ranks>(comm::MakeFakeComm(rank, world_size));
}

Ranks::Ranks(std::unique_ptr<comm::Comm> comm) : comm_(std::move(comm)) {}
Ranks::~Ranks() = default;

int Ranks::rank() const {
  return comm_->rank();
}
int Ranks::world_size() const {
  return comm_->world_size();
}
void Ranks::Broadcast(std::span<std::byte> bytes, int root) {
  if (root < 0 || root >= world_size()) {
    throw ConfigError(fmt::format("there is no rank {}", root),
                      fmt::format("ranks are numbered 0 to {}", world_size() - 1));
  }
  constexpr std::uint32_t kItem = 0x52420000;
  comm_->Broadcast(bytes, root, kItem);
}
void Ranks::Abort(const std::string& reason) noexcept {
  comm_->Abort(reason);
}

}  // namespace ullage
