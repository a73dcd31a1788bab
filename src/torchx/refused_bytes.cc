// What a message of torch's allocator says.
#include "torchx/device_memory.h"

namespace ullage::torchx {

std::string RefusedBytes(std::string_view message) {
  constexpr std::string_view kBefore = "Tried to allocate ";
  const std::size_t start = message.find(kBefore);
  if (start == std::string_view::npos) return "";
  const std::string_view rest = message.substr(start + kBefore.size());
  // A number, a space, a unit.
  const std::size_t unit = rest.find(' ');
  if (unit == std::string_view::npos) return "";
  return std::string(rest.substr(0, rest.find_first_of(" .", unit + 1)));
}

}  // namespace ullage::torchx
