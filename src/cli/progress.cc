#include "cli/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/bytes.h"

namespace ullage::cli {

void Progress::Add(const StepNumbers& step, const PhaseTimes& times) {
  last_ = step;
  ++count_;
  loss_ += step.loss;
  ms_ += step.ms;
  all_ms_ += step.ms;
  ++all_count_;
  tokens_ += step.tokens;
  times_.data += times.data;
  times_.forward += times.forward;
  times_.backward += times.backward;
  times_.step += times.step;
}

std::string Progress::Line(const MemoryReport& memory, std::int64_t rss_bytes) {
  const auto count = static_cast<double>(std::max<std::int64_t>(1, count_));
  const std::string clipped = last_.applied && last_.clip_coef < 1
                                  ? fmt::format(" (clipped by {:.3g})", last_.clip_coef)
                                  : "";
  const double left_s =
      all_ms_ / 1000 / static_cast<double>(all_count_) * static_cast<double>(total_ - last_.step);
  std::string line = fmt::format(
      "step {}/{}  epoch {:.2f}  loss {:.4f}  lr {:.3g}  grad norm {:.4g}{}  {:.0f} tokens/s  "
      "engine {}  RSS {}  {} left",
      last_.step, total_, last_.epoch, loss_ / count, last_.lr, last_.grad_norm, clipped,
      ms_ > 0 ? static_cast<double>(tokens_) * 1000 / ms_ : 0, FormatBytes(memory.peak_total),
      FormatBytes(rss_bytes), FormatDuration(left_s));
  mean_times_ = {times_.data / count, times_.forward / count, times_.backward / count,
                 times_.step / count};
  times_ = {};
  count_ = 0;
  loss_ = ms_ = 0;
  tokens_ = 0;
  return line;
}

std::string Progress::TimesLine() const {
  return fmt::format(
      "  ms a step: forward {:.1f}, backward {:.1f}, step {:.1f}, waiting for data {:.1f}",
      mean_times_.forward, mean_times_.backward, mean_times_.step, mean_times_.data);
}

std::string SkippedLine(const StepNumbers& step) {
  return fmt::format("step {} skipped: the gradient of {} is inf or nan (loss scale {:g})",
                     step.step, step.overflowed, step.loss_scale);
}

std::string MemoryLine(const MemoryReport& memory) {
  std::string text = "  memory now (at most):";
  for (std::size_t tag = 0; tag < memory.now.size(); ++tag) {
    if (memory.peak[tag].second == 0) continue;
    text += fmt::format(" {} {} ({}),", memory.now[tag].first, FormatBytes(memory.now[tag].second),
                        FormatBytes(memory.peak[tag].second));
  }
  text.pop_back();
  return text;
}

std::string FormatDuration(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(std::max(0.0, seconds)));
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
}

}  // namespace ullage::cli
