#include "files/atomic_directory.h"

#include "ullage/error.h"

namespace ullage::files {
namespace {

constexpr const char* kOld = ".ullage-old";

std::string WithoutTrailingSlashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

AtomicDirectory::AtomicDirectory(FileSystem& fs, const std::string& target)
    : fs_(fs), target_(WithoutTrailingSlashes(target)), partial_(target_ + kPartial) {
  const std::string name = target_.substr(target_.rfind('/') + 1);
  if (name.empty() || name == "." || name == "..") {
    throw ConfigError("'" + target + "' cannot be replaced by a new folder",
                      "name a folder of its own for the output");
  }
  Recover(fs_, target_);
  if (const auto status = fs_.Stat(target_); status && !status->is_directory) {
    throw IoError(target_ + ": exists and is not a folder", "choose another output");
  }
  fs_.RemoveTree(target_ + kOld);  // after Recover, only what a kill left beside a complete target
  fs_.RemoveTree(partial_);
  fs_.CreateDirectories(partial_);
  partial_exists_ = true;
}

AtomicDirectory::~AtomicDirectory() {
  if (!partial_exists_) return;
  try {
    fs_.RemoveTree(partial_);
  } catch (const IoError&) {  // a partial directory stays behind; the next one removes it
  }
}

void AtomicDirectory::Recover(FileSystem& fs, const std::string& target) {
  const std::string clean = WithoutTrailingSlashes(target);
  if (!fs.Stat(clean) && fs.Stat(clean + kOld)) {
    fs.Rename(clean + kOld, clean);
    fs.SyncDirectory(ParentOf(clean));
  }
}

void AtomicDirectory::SyncTree(const std::string& path) {
  for (const std::string& name : fs_.List(path)) {
    const std::string child = path + "/" + name;
    const auto status = fs_.Stat(child);
    if (!status || status->is_link) continue;
    if (status->is_directory) {
      SyncTree(child);
    } else {
      const auto file = fs_.OpenForAppend(child);
      file->Sync();
      file->Close();
    }
  }
  fs_.SyncDirectory(path);
}

void AtomicDirectory::Commit() {
  if (!partial_exists_) {
    throw StateError(target_ + ": was committed already", "make a new AtomicDirectory");
  }
  SyncTree(partial_);
  const std::string parent = ParentOf(target_);
  std::string old;
  if (!fs_.Stat(target_)) {
    fs_.Rename(partial_, target_);
  } else if (fs_.Exchange(partial_, target_)) {
    old = partial_;
  } else {
    old = target_ + kOld;
    fs_.Rename(target_, old);
    try {
      fs_.Rename(partial_, target_);
    } catch (const IoError&) {
      Recover(fs_, target_);
      throw;
    }
  }
  partial_exists_ = false;
  fs_.SyncDirectory(parent);
  if (old.empty()) return;
  try {
    fs_.RemoveTree(old);
    fs_.SyncDirectory(parent);
  } catch (const IoError& error) {
    throw IoError(target_ + ": is complete, but what stood there before could not be removed: " +
                      error.what(),
                  "remove " + old + " by hand");
  }
}

}  // namespace ullage::files
