// The Llama family behind the Model interface.
#pragma once

#include <c10/core/Device.h>
#include <nlohmann/json.hpp>

#include <memory>
#include <string>

#include "models/model.h"

namespace ullage::models {

// `config` is the whole config.json, `source` its path for messages. Throws as ReadLlamaConfig.
std::unique_ptr<Model> MakeLlamaModel(nlohmann::json config, const std::string& source,
                                      c10::Device device);

}  // namespace ullage::models
