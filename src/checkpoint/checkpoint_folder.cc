#include "checkpoint/checkpoint_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/manifest.h"
#include "files/atomic_directory.h"
#include "ullage/error.h"

namespace ullage::checkpoint {
namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::size_t kMostDigits = 15;
constexpr const char* kPartial = files::AtomicDirectory::kPartial;

std::optional<std::int64_t> StepsOf(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  const bool digits = std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; });
  if (!digits || name.size() < 8 || name.size() > kMostDigits) return std::nullopt;
  return std::stoll(std::string(name));
}

// What an error says, without the hint.
std::string FirstLine(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace

CheckpointFolder::CheckpointFolder(files::FileSystem& fs, std::string path)
    : fs_(fs), path_(std::move(path)) {}

std::string CheckpointFolder::NameOf(std::int64_t steps) {
  return fmt::format("{}{:08}", kPrefix, steps);
}

std::vector<std::int64_t> CheckpointFolder::Steps() const {
  std::vector<std::int64_t> steps;
  const auto status = fs_.Stat(path_);
  if (!status || !status->is_directory) return steps;
  for (const std::string& name : fs_.List(path_)) {
    if (const auto found = StepsOf(name)) steps.push_back(*found);
  }
  std::ranges::sort(steps, std::ranges::greater());
  return steps;
}

bool CheckpointFolder::IsComplete(std::int64_t steps, std::string* why_not) const {
  try {
    CheckFiles(fs_, PathOf(steps), ReadManifest(fs_, PathOf(steps)));
    return true;
  } catch (const Error& error) {
    if (why_not != nullptr) *why_not = FirstLine(error);
    return false;
  }
}

std::optional<std::string> CheckpointFolder::Latest(std::vector<std::string>* passed_over) const {
  std::vector<std::int64_t> steps = Steps();
  if (fs_.Stat(path_ + "/" + kLatestFile)) {
    std::string name = fs_.ReadText(path_ + "/" + kLatestFile, 4096);
    while (!name.empty() && (name.back() == '\n' || name.back() == '\r')) name.pop_back();
    const auto named = StepsOf(name);
    const auto found = named ? std::ranges::find(steps, *named) : steps.end();
    if (found != steps.end()) {
      std::rotate(steps.begin(), found, found + 1);
    } else if (passed_over != nullptr) {
      passed_over->push_back(fmt::format("{}/{}: names '{}', which is not there", path_,
                                         kLatestFile, name.substr(0, 100)));
    }
  }
  for (const std::int64_t step : steps) {
    std::string why_not;
    if (IsComplete(step, &why_not)) return PathOf(step);
    if (passed_over != nullptr) passed_over->push_back(why_not);
  }
  return std::nullopt;
}

void CheckpointFolder::Prepare() const {
  fs_.CreateDirectories(path_);
  for (const std::string& name : fs_.List(path_)) {
    if (name.ends_with(kPartial)) fs_.RemoveTree(path_ + "/" + name);
  }
}

void CheckpointFolder::PointTo(std::int64_t steps) const {
  const std::string text = NameOf(steps) + "\n";
  const std::string partial = path_ + "/" + kLatestFile + kPartial;
  const auto file = fs_.Create(partial);
  file->Append(text.data(), std::ssize(text));
  file->Sync();
  file->Close();
  fs_.Rename(partial, path_ + "/" + kLatestFile);
  fs_.SyncDirectory(path_);
}

void CheckpointFolder::Prune(std::int64_t keep, std::int64_t newest) const {
  std::int64_t complete = 0;
  for (const std::int64_t step : Steps()) {
    if (step > newest) continue;
    if (step == newest || complete < keep) {
      if (IsComplete(step)) ++complete;
      continue;
    }
    const std::string manifest = PathOf(step) + "/" + kManifestFile;
    if (fs_.Stat(manifest)) {
      fs_.Remove(manifest);
      fs_.SyncDirectory(PathOf(step));
    }
    fs_.RemoveTree(PathOf(step));
  }
}

}  // namespace ullage::checkpoint
