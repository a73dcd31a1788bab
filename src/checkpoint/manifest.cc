#include "checkpoint/manifest.h"

#include <fmt/format.h>

#include "ullage/error.h"

namespace ullage::checkpoint {
namespace {

// A checkpoint of 10 TB has 160 MB of checksums.
constexpr std::int64_t kMaxManifestBytes = 256 << 20;

}  // namespace

std::vector<std::string> Manifest::PartsOf(const Tensor& tensor) const {
  switch (tensor.role) {
    case Role::kTrained: {
      std::vector<std::string> parts;
      parts.emplace_back("master");
      parts.insert(parts.end(), moments.begin(), moments.end());
      return parts;
    }
    case Role::kFrozen:
      return std::vector<std::string>(1, "weight");
    case Role::kBuffer:
      return std::vector<std::string>(1, "buffer");
  }
  return {};
}

files::ElementType Manifest::TypeOf(const Tensor& tensor, std::string_view part) {
  return part == "weight" || part == "buffer" ? tensor.type : files::ElementType::kF32;
}

std::string NameInFile(std::string_view part, const std::string& tensor) {
  return fmt::format("{}.{}", part, tensor);
}

std::string_view Name(Role role) {
  switch (role) {
    case Role::kTrained:
      return "trained";
    case Role::kFrozen:
      return "frozen";
    case Role::kBuffer:
      return "buffer";
  }
  return "?";
}

Manifest ReadManifest(files::FileSystem& fs, const std::string& directory) {
  const std::string path = directory + "/" + kManifestFile;
  if (!fs.Stat(path)) {
    throw IoError(
        fmt::format("{}: is no complete checkpoint: it has no {}", directory, kManifestFile),
        "name the folder of one checkpoint, such as OUTPUT/checkpoints/step-00000200; "
        "what a save leaves before it is complete cannot be resumed from");
  }
  return ParseManifest(path, fs.ReadText(path, kMaxManifestBytes));
}

}  // namespace ullage::checkpoint
