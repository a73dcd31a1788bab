// What the tests of the tiers share: a folder that goes away, the lines that were logged, and a
// disk backend that does as it is told.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "tiers/disk_backend.h"

namespace ullage::tiers {

class TemporaryFolder {
 public:
  explicit TemporaryFolder(const std::string& parent = std::filesystem::temp_directory_path())
      : path_(parent + "/ullage-tiers-" + std::string(6, 'X')) {
    if (::mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "no folder in " << parent;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

 private:
  std::string path_;
};

// Takes the lines of warnings and information as long as it lives.
class LogLines {
 public:
  LogLines() {
    SetLogSink([this](LogLevel level, std::string_view, std::string_view line) {
      std::lock_guard lock(mutex_);
      (level == LogLevel::kWarn ? warnings_ : others_).emplace_back(line);
    });
  }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;
  ~LogLines() { SetLogSink({}); }

  const std::vector<std::string>& warnings() const { return warnings_; }
  const std::vector<std::string>& others() const { return others_; }

 private:
  std::mutex mutex_;
  std::vector<std::string> warnings_;
  std::vector<std::string> others_;
};

inline bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The message of the error of class E that `call` must throw.
template <typename E>
std::string MessageOf(const std::function<void()>& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error: " << error.what();
    return "";
  }
  ADD_FAILURE() << "no error";
  return "";
}

// What the scripted backend does with an operation.
struct Verdict {
  std::int64_t at_most = INT64_MAX;  // bytes to move: a short read or write
  int error = 0;                     // completes with this errno, moving nothing
  int refusal = 0;                   // is not accepted, for this errno
};

// Shared between a test and the backend that its DiskFile owns. Any thread.
class DiskScript {
 public:
  // Asked once for each operation, in order.
  std::function<Verdict(const DiskOperation&)> verdict = [](const DiskOperation&) {
    return Verdict{};
  };

  void Hold() {
    std::lock_guard lock(mutex_);
    holding_ = true;
  }
  void Release() {
    std::vector<DiskOperation> held;
    {
      std::lock_guard lock(mutex_);
      holding_ = false;
      held.swap(held_);
    }
    for (const DiskOperation& operation : held) backend_->Submit(operation);
  }
  std::size_t held() {
    std::lock_guard lock(mutex_);
    return held_.size();
  }
  int operations() {
    std::lock_guard lock(mutex_);
    return operations_;
  }
  int most_under_way() {
    std::lock_guard lock(mutex_);
    return most_under_way_;
  }

  DiskBackendMaker Maker() {
    return [this](const DiskBackendSettings& settings, DiskCompletion complete) {
      backend_ = MakeThreadBackend(settings, [this, complete](void* token, std::int64_t result) {
        {
          std::lock_guard lock(mutex_);
          --under_way_;
          if (const auto found = errors_.find(token); found != errors_.end()) {
            result = -found->second;
            errors_.erase(found);
          }
        }
        complete(token, result);
      });
      return std::make_unique<Backend>(*this);
    };
  }

 private:
  class Backend final : public DiskBackend {
   public:
    explicit Backend(DiskScript& script) : script_(script) {}
    ~Backend() override { script_.backend_.reset(); }
    int Submit(const DiskOperation& operation) override { return script_.Submit(operation); }
    const char* name() const override { return "script"; }

   private:
    DiskScript& script_;
  };

  int Submit(DiskOperation operation) {
    std::lock_guard lock(mutex_);
    ++operations_;
    const Verdict does = verdict(operation);
    if (does.refusal != 0) return does.refusal;
    operation.bytes = std::min(operation.bytes, does.at_most);
    if (does.error != 0) {
      errors_[operation.token] = does.error;
      operation.bytes = 0;
    }
    most_under_way_ = std::max(most_under_way_, ++under_way_);
    if (holding_) {
      held_.push_back(operation);
      return 0;
    }
    return backend_->Submit(operation);
  }

  std::mutex mutex_;
  std::unique_ptr<DiskBackend> backend_;
  std::map<void*, int> errors_;
  std::vector<DiskOperation> held_;
  bool holding_ = false;
  int operations_ = 0;
  int under_way_ = 0;
  int most_under_way_ = 0;
};

}  // namespace ullage::tiers
