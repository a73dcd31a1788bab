// Loss and accuracy, or perplexity, of a model on a data set, every record counted once over all
// ranks.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "cli/report.h"
#include "comm/comm.h"
#include "data/loader.h"
#include "data/training_data.h"
#include "models/model.h"

namespace ullage::cli {

// Collective. Puts the model into evaluation mode and back. Its parameters belong to an engine,
// which brings them together as operators ask; no rank waits for another while it computes.
EvaluationResult Evaluate(models::Model& model, const data::TrainingData& data,
                          std::int64_t batch_records, const data::LoaderOptions& options,
                          comm::Comm& comm, c10::Device device);

// "loss 0.3127  accuracy 0.9100 on 1000 records", "loss 2.1  perplexity 8.17 on 4000 tokens"
std::string Describe(const EvaluationResult& result);

}  // namespace ullage::cli
