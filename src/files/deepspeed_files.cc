#include "files/deepspeed_files.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "files/json_handler.h"
#include "ullage/error.h"

namespace ullage::files {
namespace {

constexpr const char* kModelEnding = "_model_states.pt";
constexpr const char* kOptimizerEnding = "optim_states.pt";  // older releases omit the underscore

bool TakePrefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

std::optional<int> TakeNumber(std::string_view& text) {
  constexpr std::size_t kDigits = 7;
  std::size_t digits = 0;
  int number = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') {
    if (digits == kDigits) return std::nullopt;
    number = 10 * number + (text[digits++] - '0');
  }
  if (digits == 0) return std::nullopt;
  text.remove_prefix(digits);
  return number;
}

[[noreturn]] void Split(const std::string& path, const char* how) {
  throw UnsupportedError(
      fmt::format("{}: the checkpoint is of a model that was split by {}", path, how),
      "convert it to a whole model with DeepSpeed's tools; checkpoints of ZeRO stages 0 to 3 "
      "alone, and their universal form, are read");
}

void Add(std::map<int, std::string>& files, int rank, const std::string& path) {
  const auto [place, added] = files.emplace(rank, path);
  if (!added) {
    throw IoError(fmt::format("{} and {} are both of rank {}", place->second, path, rank),
                  "remove the one that an older run left");
  }
}

// [bf16_|fp16_][zero_pp_rank_R_]mp_rank_MM_model_states.pt, and the same with optim_states.pt.
void AddByName(DeepSpeedFiles& files, const std::string& name) {
  const bool model = name.ends_with(kModelEnding);
  if (!model && !name.ends_with(kOptimizerEnding)) return;
  const std::string path = files.folder + "/" + name;
  std::string_view text = name;
  if (text.starts_with("layer_")) Split(path, "layers or experts");
  if (text.starts_with("expp_rank_")) Split(path, "experts");
  if (!TakePrefix(text, "bf16_")) TakePrefix(text, "fp16_");
  int rank = 0;
  if (TakePrefix(text, "zero_pp_rank_")) {
    const auto number = TakeNumber(text);
    if (!number || !TakePrefix(text, "_")) return;
    rank = *number;
  }
  if (!TakePrefix(text, "mp_rank_")) return;
  const auto part = TakeNumber(text);
  if (!part) return;
  if (*part != 0) Split(path, "tensors");
  if (model && text == kModelEnding) Add(files.model, rank, path);
  TakePrefix(text, "_");
  if (!model && text == kOptimizerEnding) Add(files.optimizer, rank, path);
}

DeepSpeedFiles FilesOf(FileSystem& fs, const std::string& folder) {
  DeepSpeedFiles files;
  files.folder = folder;
  for (const std::string& name : fs.List(folder)) AddByName(files, name);
  const auto zero = fs.Stat(folder + "/zero");
  files.universal = files.optimizer.empty() && zero && zero->is_directory;
  return files;
}

}  // namespace

std::optional<DeepSpeedFiles> FindDeepSpeedFiles(FileSystem& fs, const std::string& directory,
                                                 bool prefer_universal) {
  const auto status = fs.Stat(directory);
  if (!status || !status->is_directory) return std::nullopt;
  std::array<const char*, 2> names = {"/latest", "/latest_universal"};
  if (prefer_universal) std::ranges::reverse(names);
  for (const char* latest : names) {
    const std::string path = directory + latest;
    const auto file = fs.Stat(path);
    if (!file || !file->is_regular) continue;
    std::string tag = fs.ReadText(path, 4096);
    while (!tag.empty() && std::string_view(" \n\r\t").find(tag.back()) != std::string_view::npos) {
      tag.pop_back();
    }
    const bool plain = !tag.empty() && tag.find('/') == std::string::npos &&
                       tag.find('\0') == std::string::npos && tag != "." && tag != "..";
    const std::string folder = directory + "/" + tag;
    const auto found = plain ? fs.Stat(folder) : std::nullopt;
    if (!found || !found->is_directory) {
      throw IoError(
          fmt::format("{}: names {}, which is no folder beside it", path, JsonHandler::Quoted(tag)),
          "name the folder of the checkpoint itself");
    }
    return FilesOf(fs, folder);
  }
  DeepSpeedFiles files = FilesOf(fs, directory);
  if (files.model.empty()) return std::nullopt;
  return files;
}

}  // namespace ullage::files
