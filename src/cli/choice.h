// What ullage.device_memory leaves to the program, settled before a training begins.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/arguments.h"
#include "data/training_data.h"
#include "files/file_system.h"
#include "models/model.h"
#include "planner/job.h"
#include "planner/search.h"
#include "ullage/ranks.h"
#include "ullage/settings.h"

namespace ullage::cli {

// The longest record of a training's data and of its evaluation's, in tokens as batches have them;
// 0: there is none.
struct LongestRecords {
  std::int64_t train = 0, eval = 0;
};

std::int64_t LongestOf(const TrainArguments& arguments, const data::TrainingData& data,
                       const models::Model& model);

// The training as a job for the planner, on the CUDA device that this rank computes on.
planner::Job JobOf(const TrainArguments& arguments, const Settings& settings, const Ranks& ranks,
                   const LongestRecords& longest, int num_labels);

// On CUDA with ullage.device_memory: chooses what `settings` leaves open (planner::LeftOpen), the
// fastest that fits, and says why in the lines that it returns. Else does nothing. The same on all
// ranks. Throws OutOfMemoryError when nothing fits.
std::vector<std::string> ChooseWithinBudget(files::FileSystem& fs, const TrainArguments& arguments,
                                            const Ranks& ranks, Settings& settings);

// Sets in `settings` what `chosen` has otherwise, as "planner"'s.
void Adopt(const planner::Job& chosen, Settings& settings);
// Of a search within `budget`, for people.
std::vector<std::string> ChoiceLines(const planner::Found& found, std::int64_t budget);

}  // namespace ullage::cli
