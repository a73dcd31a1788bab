// What this rank's file of a checkpoint holds, and what the manifest says of all of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "engine/checkpoint_state.h"
#include "engine/core.h"
#include "files/safetensors_writer.h"

namespace ullage::engine {

// One tensor of a rank's file: a part of a piece of a parameter, or bytes.
struct SavedTensor {
  files::TensorDeclaration declaration;
  WrittenPiece piece = {};  // numel 0: `bytes` hold all
  int moment = -1;          // -1: the values
  at::Tensor bytes = {};    // a copy on the CPU, contiguous
};

// In the order of the file: those of one unit follow each other. Buffers and the states of random
// generators are copied now. Throws UnsupportedError for a buffer that cannot be saved.
std::vector<SavedTensor> SavedTensors(const Engine::Core& core);

// All but the files.
checkpoint::Manifest DescribeCheckpoint(const Engine::Core& core, const std::string& client_state);

}  // namespace ullage::engine
