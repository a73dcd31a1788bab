// In which order units are used: recorded in one step, it predicts the next.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace ullage::params {

// A wrong prediction costs time, never correctness. Not thread-safe.
class UseSequence {
 public:
  // An operator uses `unit`. Uses of the unit that was used last say nothing new.
  void Use(int unit) {
    if (!recorded_.empty() && recorded_.back() == unit) return;
    if (recorded_.size() < kMost) recorded_.push_back(unit);
    const auto found =
        std::find(predicted_.begin() + static_cast<std::ptrdiff_t>(next_), predicted_.end(), unit);
    // A unit that was not expected any more leaves the prediction where it is.
    if (found != predicted_.end()) {
      next_ = static_cast<std::size_t>(found - predicted_.begin()) + 1;
    }
  }

  // A step ends: what was recorded predicts the next one.
  void Restart() {
    predicted_ = std::exchange(recorded_, {});
    next_ = 0;
  }

  // Calls `take(unit)` for the units expected next, in order, until it returns false.
  template <typename Take>
  void ForExpected(const Take& take) const {
    for (std::size_t i = next_; i < predicted_.size(); ++i) {
      if (!take(predicted_[i])) return;
    }
  }

 private:
  // Evaluations without a step between them record all that they use.
  static constexpr std::size_t kMost = 1 << 20;

  std::vector<int> predicted_;
  std::size_t next_ = 0;  // the first of them that is still to come
  std::vector<int> recorded_;
};

}  // namespace ullage::params
