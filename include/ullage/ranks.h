// The ranks that train together.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "ullage/export.h"

namespace ullage {

namespace comm {
class Comm;
}

class ULLAGE_API Ranks {
 public:
  // Meets the others as torchrun, mpirun, srun or `ullage train --ranks` describe in the
  // environment; alone when none of them does. Throws ConfigError or CommError.
  static std::shared_ptr<Ranks> FromEnvironment(std::chrono::seconds timeout);
  // `world_size` ranks of which only `rank` exists, for dry runs.
  static std::shared_ptr<Ranks> Imagined(int rank, int world_size);
  explicit Ranks(std::unique_ptr<comm::Comm> comm);
  ~Ranks();

  int rank() const;
  int world_size() const;
  // Collective: every rank's `bytes` become those of rank `root`.
  void Broadcast(std::span<std::byte> bytes, int root);
  // Tells the others that this rank gives up, so that they end promptly instead of at the timeout.
  void Abort(const std::string& reason) noexcept;

  comm::Comm& comm() const { return *comm_; }

 private:
  std::unique_ptr<comm::Comm> comm_;
};

}  // namespace ullage
