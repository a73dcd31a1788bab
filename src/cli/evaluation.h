// Loss and accuracy of a model on a data set, every record counted once over all ranks.
#pragma once

#include <cstdint>

#include "comm/comm.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "models/model.h"

namespace ullage::cli {

struct EvaluationResult {
  double loss = 0;           // mean over the labels that count
  double accuracy = 0;       // share of them whose class has the highest logit
  std::int64_t records = 0;  // with a label that counts
  double seconds = 0;
};

// Collective. Puts the model into evaluation mode and back. Its parameters belong to an engine,
// which brings them together as operators ask; no rank waits for another while it computes.
EvaluationResult Evaluate(models::Model& model, const data::Dataset& dataset,
                          std::int64_t batch_records, const data::LoaderOptions& options,
                          comm::Comm& comm);

}  // namespace ullage::cli
