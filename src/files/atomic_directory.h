// A directory that appears complete or not at all: an export, a best model, later a checkpoint.
#pragma once

#include <string>

#include "files/file_system.h"

namespace ullage::files {

// Collects files under "<target>.ullage-partial" and puts them in the place of `target` at
// Commit(). At every moment, also after a kill at any byte, `target` is what it was before or the
// complete new directory; where the file system cannot exchange two names, it may for an instant be
// absent while the old one is complete under "<target>.ullage-old", from which the next
// AtomicDirectory (or Recover) restores it. One thread; two of them for one target at a time are an
// error of the caller. `fs` must outlive it.
class AtomicDirectory {
 public:
  // path() is the target's with this behind it, so that other processes can write there, too.
  static constexpr const char* kPartial = ".ullage-partial";

  // Makes "<target>.ullage-partial" anew, and its parents. Throws ConfigError when `target` is "/",
  // "." or
  // "..", which cannot be replaced, IoError when it exists and is no directory.
  AtomicDirectory(FileSystem& fs, const std::string& target);
  // Removes the partial directory unless Commit() came to its end.
  ~AtomicDirectory();
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  // Where to write; sub-directories are allowed.
  const std::string& path() const { return partial_; }
  std::string PathOf(const std::string& name) const { return partial_ + "/" + name; }

  // Brings every file and directory to the disk and puts the directory in place. What `target` held
  // before is removed, whatever it was. Once only. When removing the old content fails, the new
  // one is in place and the error says so.
  void Commit();

  // Puts "<target>.ullage-old" back when a kill left no `target`. Readers of a target may call it
  // first.
  static void Recover(FileSystem& fs, const std::string& target);

 private:
  void SyncTree(const std::string& path);

  FileSystem& fs_;
  std::string target_;
  std::string partial_;
  bool partial_exists_ = false;
};

}  // namespace ullage::files
