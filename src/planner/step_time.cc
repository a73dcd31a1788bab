// Note [Step time]
// A roofline for each kernel: the longer of its operations at the rate of such kernels and its
// bytes at that of memory, and a time that any kernel takes. Kernels follow one another; copies,
// the host and the CPU that launches go on beside them, so a forward or a backward takes as long as
// the slowest of these. The update of what lies on the host goes on while the next step's forward
// waits for its weights: it counts there, once in a step.
#include "planner/step_time.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>

namespace ullage::planner {
namespace {

using memory::Phase;
using memory::Traffic;
using torchx::OperatorWork;

constexpr std::int64_t kCacheBytes = 40 << 20;  // what the next kernel finds in the cache
// Attention has more than one kernel for a gradient, and more to prepare than others.
constexpr double kAttentionStart = 8e-6, kAttentionGradientStart = 25e-6;
// Before the first unit is updated beside a forward, and after the last.
constexpr double kUpdateStart = 5e-3;
constexpr double kStepStart = 0.5e-3;

bool IsNarrow(c10::ScalarType type) {
  return type == c10::ScalarType::Half || type == c10::ScalarType::BFloat16;
}

double PassSeconds(double bytes, const MachineRates& rates) {
  return bytes / (bytes < kCacheBytes ? rates.cache : rates.memory);
}

double AttentionSeconds(const OperatorWork& work, const MachineRates& rates) {
  const bool is_flash =
      work.kind == OperatorWork::Kind::kFlash || work.kind == OperatorWork::Kind::kFlashGradient;
  const bool is_gradient = work.kind == OperatorWork::Kind::kFlashGradient ||
                           work.kind == OperatorWork::Kind::kEfficientGradient;
  const MachineRates::Attention& kernel = is_flash              ? rates.flash
                                          : IsNarrow(work.type) ? rates.efficient16
                                                                : rates.efficient32;
  double rate = is_gradient ? kernel.gradient : kernel.forward;
  // Measured on the H200: heads of 64 elements use less of it, and random numbers cost.
  if (is_flash && !is_gradient && work.inner < 128) {
    rate *= std::sqrt(static_cast<double>(work.inner) / 128);
  }
  if (work.has_dropout) rate *= is_flash ? (is_gradient ? 0.93 : 0.78) : 0.62;
  const auto squares = static_cast<double>(work.batch) * static_cast<double>(work.rows) *
                       static_cast<double>(work.columns) * static_cast<double>(work.inner);
  // Two products forward, five backward. Of causal ones whole blocks are left out, so few of short
  // rows (the same measurements).
  const double left =
      work.is_causal ? std::min(1.0, 0.6 + 170.0 / static_cast<double>(work.rows)) : 1;
  return (is_gradient ? kAttentionGradientStart : kAttentionStart) +
         (is_gradient ? 10 : 4) * left * squares / rate;
}

// Times that go on beside each other, by what they wait for.
class Beside {
 public:
  void Add(const char* what, double seconds) {
    if (seconds <= seconds_) return;
    what_ = what;
    seconds_ = seconds;
  }
  Beside Over(double count) const {
    Beside part = *this;
    part.seconds_ /= count;
    return part;
  }
  double seconds() const { return seconds_; }
  const char* what() const { return what_; }

 private:
  const char* what_ = "operators";
  double seconds_ = 0;
};

}  // namespace

double KernelSeconds(const OperatorWork& work, const MachineRates& rates) {
  const auto bytes = static_cast<double>(work.bytes);
  switch (work.kind) {
    case OperatorWork::Kind::kPass:
      return rates.kernel + PassSeconds(bytes, rates);
    case OperatorWork::Kind::kProduct: {
      const double operations = 2 * static_cast<double>(work.batch) *
                                static_cast<double>(work.rows) * static_cast<double>(work.columns) *
                                static_cast<double>(work.inner);
      const double rate = IsNarrow(work.type) ? rates.product16 : rates.product32;
      return rates.kernel + std::max(operations / rate, PassSeconds(bytes, rates));
    }
    default:
      return AttentionSeconds(work, rates);
  }
}

StepTime EstimateStep(const memory::WorkLog& log, std::int64_t steps, std::int64_t micro_steps,
                      bool is_recorded, const MachineRates& rates) {
  const auto in_log = static_cast<double>(std::max<std::int64_t>(1, steps));
  const auto passes = static_cast<double>(std::max<std::int64_t>(1, log.entries(Phase::kForward)));
  std::array<double, memory::kPhaseCount> operators{};
  for (const memory::WorkLog::Kernels& kernels : log.kernels()) {
    operators[static_cast<std::size_t>(kernels.phase)] +=
        static_cast<double>(kernels.count) * KernelSeconds(kernels.work, rates);
  }
  const auto at = [&](Phase phase, Traffic traffic, double rate) {
    return static_cast<double>(log.bytes(phase, traffic)) / rate;
  };
  const auto of_pass = [&](Phase phase) {
    Beside beside;
    beside.Add("operators", operators[static_cast<std::size_t>(phase)] +
                                at(phase, Traffic::kGradients, rates.update));
    if (!is_recorded) {
      beside.Add("launches", static_cast<double>(log.calls(phase)) * rates.call);
    }
    beside.Add("copies", at(phase, Traffic::kUp, rates.copies));
    beside.Add("copies", at(phase, Traffic::kDown, rates.copies));
    beside.Add("peers", at(phase, Traffic::kFromPeers, rates.peers));
    beside.Add("the host", at(phase, Traffic::kHostSums, rates.host_sums));
    return beside.Over(passes);
  };
  const Beside forward = of_pass(Phase::kForward), backward = of_pass(Phase::kBackward);
  const double update_on_host = at(Phase::kStep, Traffic::kHostUpdate, rates.host_update) / in_log;
  const double update_on_disk = at(Phase::kStep, Traffic::kDiskUpdate, rates.disk) / in_log;
  // Weights on their way up and state on its way through the device share a road.
  const double weights_up = at(Phase::kForward, Traffic::kUp, rates.copies) / passes;
  Beside first = forward;
  if (update_on_host > 0) first.Add("the host", kUpdateStart + update_on_host + weights_up);
  if (update_on_disk > 0) first.Add("disk", kUpdateStart + update_on_disk);

  const auto count = static_cast<double>(micro_steps);
  StepTime time;
  time.forward = first.seconds() + forward.seconds() * (count - 1);
  time.backward = backward.seconds() * count;
  time.step = kStepStart + (at(Phase::kStep, Traffic::kUpdate, rates.update) +
                            at(Phase::kStep, Traffic::kHostNorm, rates.host_norm) +
                            at(Phase::kStep, Traffic::kFromPeers, rates.peers) +
                            operators[static_cast<std::size_t>(Phase::kStep)]) /
                               in_log;
  std::map<std::string, double> waits;
  waits[first.what()] += first.seconds();
  waits[forward.what()] += forward.seconds() * (count - 1);
  waits[backward.what()] += time.backward;
  waits["operators"] += time.step;
  time.bound =
      std::ranges::max_element(waits, {}, [](const auto& wait) { return wait.second; })->first;
  return time;
}

}  // namespace ullage::planner
