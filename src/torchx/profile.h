// Names for what a profiler shows: the phases of a step and what is done for each unit.
#pragma once

#include <memory>
#include <string_view>

namespace at {
class RecordFunction;
}

namespace ullage::torchx {

// For its life, what runs on this thread counts as "ullage::<name>", or "ullage::<name> <unit>".
// torch's profiler shows it as a user scope, and as an NVTX range where the profiler emits these.
// Costs a look at one thread-local value when nobody profiles.
class ProfilerRange {
 public:
  explicit ProfilerRange(std::string_view name, int unit = -1);
  ~ProfilerRange();
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;

 private:
  std::unique_ptr<at::RecordFunction> function_;  // null: nobody profiles
};

}  // namespace ullage::torchx
