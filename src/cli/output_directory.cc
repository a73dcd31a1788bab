#include "cli/output_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "ullage/error.h"

namespace ullage::cli {
namespace {

// What a run that was killed early may leave; no folder of anyone else holds only these.
bool IsLeftover(const std::string& name) {
  return name == kMetricsFile || name.ends_with(".ullage-partial") || name.ends_with(".partial");
}

constexpr std::int64_t kMaxMetricsBytes = std::int64_t{1} << 30;

std::string LinesUpTo(std::int64_t steps, const std::string& text) {
  std::string kept;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string line = text.substr(begin, end - begin);
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) continue;
    if (json["step"].get<std::int64_t>() <= steps) kept += line + "\n";
  }
  return kept;
}

}  // namespace

void CheckOutput(files::FileSystem& fs, const std::string& output, const std::string& model) {
  const auto status = fs.Stat(output);
  if (!status) return;
  if (!status->is_directory) {
    throw ConfigError(output + ": exists and is no folder", "name a new folder");
  }
  std::error_code ignored;
  if (std::filesystem::equivalent(output, model, ignored)) {
    throw ConfigError(output + ": is the folder of the model that is read",
                      "name another folder for the output");
  }
  const std::vector<std::string> names = fs.List(output);
  if (std::ranges::find(names, kRunFile) != names.end()) return;
  if (std::ranges::all_of(names, IsLeftover)) return;
  throw ConfigError(
      fmt::format("{}: holds {} files that are not of an earlier run (no {} among them)", output,
                  names.size(), kRunFile),
      "name a new folder, or empty this one yourself");
}

void CheckFileToWrite(files::FileSystem& fs, const std::string& path, const std::string& option) {
  const auto status = fs.Stat(path);
  const auto folder = fs.Stat(files::ParentOf(path));
  if (status && status->is_directory) {
    throw ConfigError(fmt::format("{} {}: is a folder", option, path), "name a file");
  }
  if (!folder || !folder->is_directory) {
    throw ConfigError(fmt::format("{} {}: there is no such folder", option, path),
                      "make the folder first");
  }
}

void WriteWhole(files::FileSystem& fs, const std::string& path, const std::string& text) {
  const std::string partial = path + ".partial";
  auto file = fs.Create(partial);
  file->Append(text.data(), std::ssize(text));
  file->Sync();
  file->Close();
  fs.Rename(partial, path);
}

void CopySmall(files::FileSystem& fs, const std::string& from, const std::string& to,
               std::int64_t limit_bytes) {
  WriteWhole(fs, to, fs.ReadText(from, limit_bytes));
}

MetricsFile::MetricsFile(files::FileSystem& fs, const std::string& directory,
                         std::int64_t steps_done) {
  const std::string path = directory + "/" + kMetricsFile;
  if (steps_done > 0 && fs.Stat(path)) {
    // A run that was killed may have gone on behind its last checkpoint, and broken off in a line.
    WriteWhole(fs, path, LinesUpTo(steps_done, fs.ReadText(path, kMaxMetricsBytes)));
    file_ = fs.OpenForAppend(path);
  } else {
    file_ = fs.Create(path);
  }
}

void MetricsFile::Add(const std::string& json_line) {
  const std::string line = json_line + "\n";
  file_->Append(line.data(), std::ssize(line));
}

}  // namespace ullage::cli
