// What a training prints as it goes.
#pragma once

#include <cstdint>
#include <string>

#include "cli/report.h"
#include "ullage/engine.h"

namespace ullage::cli {

// Where the time of the steps since the last line went, in ms.
struct PhaseTimes {
  double data = 0;
  double forward = 0;
  double backward = 0;
  double step = 0;
};

// Collects the steps between two lines.
class Progress {
 public:
  // A line every `every` steps, and after the last of `total`.
  Progress(std::int64_t total, std::int64_t every) : total_(total), every_(every) {}

  bool IsDue(std::int64_t step) const { return step % every_ == 0 || step == total_; }
  void Add(const StepNumbers& step, const PhaseTimes& times);

  // Loss, tokens/s and times are means over the steps since the last line; `rss_bytes` is the most
  // of any rank. Begins anew.
  std::string Line(const MemoryReport& memory, std::int64_t rss_bytes);
  std::string TimesLine() const;  // of the last line's steps

 private:
  std::int64_t total_;
  std::int64_t every_;
  StepNumbers last_;
  std::int64_t count_ = 0;
  double loss_ = 0;
  double ms_ = 0;
  double all_ms_ = 0;  // of all steps of this process
  std::int64_t all_count_ = 0;
  std::int64_t tokens_ = 0;
  PhaseTimes times_;
  PhaseTimes mean_times_;
};

// "skipped step 12: gradient of bert... is inf or nan (loss scale 65536)"
std::string SkippedLine(const StepNumbers& step);

// "memory: weights 3 MiB now, 4 MiB at most; ..."
std::string MemoryLine(const MemoryReport& memory);

// "1h02m", "3m20s", "45s"
std::string FormatDuration(double seconds);

}  // namespace ullage::cli
