// A loader's batch as the model takes it, on the device that computes.
#pragma once

#include <c10/core/Device.h>

#include "data/batch.h"
#include "models/model.h"

namespace ullage::cli {

// The CPU, or the CUDA device of this process. Throws UnsupportedError where there is none.
c10::Device DeviceFor(bool cuda);

// On CUDA the copies are only queued, from page-locked memory.
models::Batch OnDevice(const data::Batch& batch, c10::Device device);

}  // namespace ullage::cli
