// BERT behind the Model interface.
#pragma once

#include <c10/core/Device.h>
#include <nlohmann/json.hpp>

#include <memory>
#include <string>

#include "models/model.h"

namespace ullage::models {

// `config` is the whole config.json, `source` its path for messages. Throws as ReadBertConfig.
std::unique_ptr<Model> MakeBertModel(nlohmann::json config, const std::string& source,
                                     int num_labels_override, c10::Device device);

}  // namespace ullage::models
