// A training job of one of our model families, described well enough to predict it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "models/model.h"
#include "ullage/planner.h"

namespace ullage::planner {

struct Job {
  std::string model;  // a config.json
  Settings settings;  // batch sizes resolved, but for what levers change
  int rank = 0;
  int ranks = 1;
  std::int64_t sequence = 0;  // tokens of each record
  int num_labels = 0;         // 0: as the model says
  // The largest batch of an evaluation beside the training; 0 tokens: there is none, 0 records: as
  // many as in a micro-batch.
  std::int64_t eval_records = 0, eval_sequence = 0;
  bool cuda = false;
  DeviceModel device;               // where `cuda`
  std::int64_t operator_bytes = 0;  // EngineOptions; 0: predicted
};

// One step of the job in a dry run, of its first few micro-steps if it has more. `after` gets the
// engine at the end of it; it may be null.
MemoryPrediction Predict(const Job& job, const std::function<void(const Engine&)>& after = nullptr);

// The job's model, on Meta, in training, with the job's recompute.
std::unique_ptr<models::Model> MakeModel(const Job& job);

}  // namespace ullage::planner
