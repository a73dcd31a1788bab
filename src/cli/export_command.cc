// `ullage export`: a model directory written anew, its weights checked and in the type asked for,
// or with the values of a checkpoint.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "checkpoint/checkpoint_reader.h"
#include "cli/commands.h"
#include "cli/model_directory.h"
#include "cli/model_weights.h"
#include "cli/output_directory.h"
#include "cli/run_state.h"
#include "cli/setup.h"
#include "kernels/cast.h"
#include "ullage/error.h"

namespace ullage::cli {
namespace {

constexpr std::int64_t kPieceNumel = 1 << 20;

std::int64_t Numel(const NamedShape& parameter) {
  std::int64_t numel = 1;
  for (const std::int64_t size : parameter.shape) numel *= size;
  return numel;
}

// The classes that the model had when `ullage train` saved it; 0: as its directory says.
int LabelsOf(const checkpoint::CheckpointReader& reader) {
  const std::string& state = reader.manifest().client_state;
  if (state.empty()) return 0;
  return ParseRunState(reader.directory(), state).num_labels;
}

// The fp32 values of a checkpoint, where there are some, or else its frozen weights.
class CheckpointWeights final : public WeightSource {
 public:
  explicit CheckpointWeights(const checkpoint::CheckpointReader& reader) : reader_(reader) {}

  void Read(const std::string& name, std::span<const std::int64_t> shape, std::int64_t first,
            std::span<float> values) override {
    const checkpoint::Tensor* tensor = reader_.Find(name);
    if (tensor == nullptr || !std::ranges::equal(tensor->shape, shape)) {
      throw ConfigError(
          fmt::format(
              "{}: the model has '{}' of shape [{}], the checkpoint {}", reader_.directory(), name,
              fmt::join(shape, ", "),
              tensor == nullptr ? "has none" : "has shape " + files::FormatShape(tensor->shape)),
          "name with --model the directory that the run began with");
    }
    const std::string part = reader_.manifest().PartsOf(*tensor).front();
    const files::ElementType type = checkpoint::Manifest::TypeOf(*tensor, part);
    raw_.resize(values.size() * static_cast<std::size_t>(files::ElementBytes(type)));
    reader_.ReadInto({tensor, part, first, std::ssize(values)}, raw_.data());
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      if (files::ToElementType(dtype) != type) continue;
      kernels::Convert(dtype, raw_.data(), DType::kFloat32, values.data(), std::ssize(values));
      return;
    }
    throw IoError(fmt::format("{}: '{}' has type {}", reader_.directory(), name, files::Name(type)),
                  "it is no checkpoint of a model's weights");
  }

 private:
  const checkpoint::CheckpointReader& reader_;
  std::vector<std::byte> raw_;
};

}  // namespace

int RunExport(const ExportArguments& arguments, const CommandLine& command_line) {
  files::PosixFileSystem fs;
  CheckOutput(fs, arguments.output, arguments.model);
  std::unique_ptr<checkpoint::CheckpointReader> checkpoint;
  if (!arguments.checkpoint.empty()) {
    std::vector<std::string> passed_over;
    checkpoint = std::make_unique<checkpoint::CheckpointReader>(
        fs, ResolveCheckpoint(fs, arguments.checkpoint, passed_over));
    for (const std::string& line : passed_over) fmt::print("{}\n", line);
  }
  const auto model = ModelOnMeta(arguments.model, checkpoint ? LabelsOf(*checkpoint) : 0);
  std::unique_ptr<WeightSource> weights;
  if (checkpoint) {
    weights = std::make_unique<CheckpointWeights>(*checkpoint);
  } else {
    auto own = std::make_unique<ModelWeights>(files::WeightFiles::Open(fs, arguments.model), *model,
                                              std::vector<std::string>(), /*seed=*/0);
    if (!own->new_parameters().empty()) {
      throw ConfigError(fmt::format("{}: has no weights for {}", arguments.model,
                                    fmt::join(own->new_parameters(), ", ")),
                        "train the model first: ullage train");
    }
    weights = std::move(own);
  }
  const std::vector<NamedShape> parameters = DistinctParameters(*model);
  fs.CreateDirectories(arguments.output);
  const nlohmann::ordered_json run = {
      {"ullage", ULLAGE_VERSION}, {"torch", ULLAGE_TORCH_VERSION}, {"command", command_line}};
  WriteWhole(fs, arguments.output + "/" + kRunFile,
             run.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");

  ModelDirectoryWriter writer(fs, arguments.output, *model, parameters, arguments.dtype);
  std::vector<float> values;
  std::int64_t total = 0;
  for (const NamedShape& parameter : parameters) {
    const std::int64_t numel = Numel(parameter);
    for (std::int64_t first = 0; first < numel; first += kPieceNumel) {
      values.resize(static_cast<std::size_t>(std::min(kPieceNumel, numel - first)));
      weights->Read(parameter.name, parameter.shape, first, values);
      writer.Append(values);
    }
    total += numel;
  }
  writer.Finish(arguments.model);
  fmt::print("{} parameters, {} as {}, written to {}\n", total,
             FormatBytes(total * ElementBytes(arguments.dtype)), HuggingFaceName(arguments.dtype),
             arguments.output);
  return 0;
}

}  // namespace ullage::cli
