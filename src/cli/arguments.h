// What the command line says, as plain structs; --help is made from the same declarations.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/dtype.h"

namespace ullage::cli {

struct TrainArguments {
  bool cuda = false;  // --device cuda
  std::string model;  // a Hugging Face model directory
  std::string train;  // token files of ullage-prepare
  std::string eval;   // empty: no evaluation
  std::string config;
  std::string output;
  std::string report;      // empty: none
  std::int64_t steps = 0;  // optimizer steps; 0: by epochs
  std::int64_t epochs = 1;
  int ranks = 0;  // processes to start; 0: not given
  std::uint64_t seed = 42;
  std::int64_t max_length = 0;          // tokens; 0 cuts nothing
  std::int64_t sequence_length = 0;     // tokens; 0: as usual
  std::int64_t pad_to_multiple_of = 0;  // tokens; 0: not given
  std::int64_t eval_every = 0;          // steps; 0: after each epoch
  std::int64_t eval_batch = 0;          // records; 0: as the micro batch
  int num_labels = 0;                   // 0: as the token file says
  std::vector<std::string> allow_missing;
  bool group_by_length = true;
  int threads = 0;                       // of each rank; 0: cores / ranks
  std::int64_t save_every = 0;           // steps; 0: no checkpoints
  std::int64_t keep = 2;                 // checkpoints
  std::int64_t save_buffer = 256 << 20;  // bytes
  bool resume = false;                   // from the output's own checkpoints
  std::string resume_from;               // a checkpoint, or a folder of them; empty: not given
  DType export_dtype = DType::kFloat32;
};

struct PlanArguments {
  bool cuda = false;
  std::string model;  // a model directory or a config.json
  std::string config;
  std::string train;  // a token file whose lengths count; empty: none
  int ranks = 1;
  int rank = 0;
  std::int64_t micro_batch = 0;  // records; 0: as the settings say
  std::int64_t sequence = 0;     // tokens; 0: as usual for the task
  std::string operator_bytes;    // of ullage.device_memory; empty: predicted
  std::string device;            // a known CUDA device, or its bytes; empty: none
  bool json = false;
};

struct EvaluateArguments {
  bool cuda = false;
  std::string model;
  std::string eval;
  std::int64_t batch = 32;  // records in one forward on one rank
  std::int64_t max_length = 0;
  std::int64_t sequence_length = 0;  // tokens; 0: as usual
  int ranks = 0;
  int threads = 0;
  bool json = false;
};

struct ExportArguments {
  std::string model;
  std::string checkpoint;  // whose values are written; empty: the model's own
  std::string output;
  DType dtype = DType::kFloat32;
};

struct InspectArguments {
  std::string path;     // a checkpoint, a folder of them, or the output of a run
  bool verify = false;  // every byte
  bool norms = false;   // of every tensor
  bool json = false;
};

struct DoctorArguments {
  std::string config;  // a ds_config.json to read, too; empty: none
  bool json = false;
};

using Command = std::variant<TrainArguments, PlanArguments, EvaluateArguments, ExportArguments,
                             InspectArguments, DoctorArguments>;

struct ParsedArguments {
  std::optional<Command> command;  // absent: help was printed, or the arguments are wrong
  int exit_code = 0;
};

// Prints help to stdout and what is wrong to stderr.
ParsedArguments ParseArguments(int argc, char** argv);

}  // namespace ullage::cli
