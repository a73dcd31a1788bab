// The loop of the optimizers' kernels: many ranges, each with the factors of its group. Internal to
// the room.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/device/each_element.cuh"
#include "kernels/device/each_part.cuh"
#include "kernels/update_part.h"

namespace ullage::kernels::device {

struct UpdatePointers {
  void* weight;
  void* extension;
  const void* gradient;
  float* first_moment;
  float* second_moment;
  int step;  // index into the table's steps
};

inline constexpr int kUpdateWidth = 4;  // elements that a thread takes at a time
inline constexpr std::size_t kStepsOfTable = 8;

template <class Factors>
struct UpdateTable : PartTable<UpdatePointers, 60, int64_t{2} * kUpdateWidth * kThreads> {
  Factors steps[kStepsOfTable];
};

// Launches those of `parts` that have the types of the table and a step among
// `steps`[first, first + kStepsOfTable).
template <class Table, class Step, class Factors>
void LaunchUpdatesOf(const char* kernel, DType weight, DType gradient, std::span<const Step> steps,
                     std::size_t first, std::span<const UpdatePart> parts, Stream stream) {
  Table empty{};
  const std::size_t count = std::min(kStepsOfTable, steps.size() - first);
  for (std::size_t i = 0; i < count; ++i) empty.steps[i] = Factors(steps[first + i]);
  PartLauncher<kUpdateWidth, Table> launcher(kernel, empty, stream);
  for (const UpdatePart& part : parts) {
    const auto step = static_cast<std::size_t>(part.step);
    if (part.weights.dtype != weight || part.gradient_dtype != gradient || step < first ||
        step >= first + count) {
      continue;
    }
    launcher.Add(
        UpdatePointers{part.weights.weight, part.weights.extension, part.gradient,
                       part.first_moment, part.second_moment, static_cast<int>(step - first)},
        part.n,
        {part.weights.weight, part.weights.extension, part.gradient, part.first_moment,
         part.second_moment});
  }
  launcher.Finish();
}

template <template <DType, DType> class Table, class Factors, class Step>
void LaunchUpdates(const char* kernel, std::span<const Step> steps,
                   std::span<const UpdatePart> parts, Stream stream) {
  for (const Step& step : steps) static_cast<void>(Factors(step));  // throws before any launch
  CheckSteps(kernel, steps.size(), parts);
  constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  for (const DType weight : kTypes) {
    for (const DType gradient : kTypes) {
      const auto has_types = [&](const UpdatePart& part) {
        return part.weights.dtype == weight && part.gradient_dtype == gradient;
      };
      if (std::ranges::none_of(parts, has_types)) continue;
      WithDType(weight, [&](auto weight_type) {
        WithDType(gradient, [&](auto gradient_type) {
          for (std::size_t first = 0; first < steps.size(); first += kStepsOfTable) {
            LaunchUpdatesOf<Table<weight_type(), gradient_type()>, Step, Factors>(
                kernel, weight, gradient, steps, first, parts, stream);
          }
        });
      });
    }
  }
}

}  // namespace ullage::kernels::device
