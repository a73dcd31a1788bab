// `ullage export`: a model directory written anew, its weights checked and in the type asked for.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "cli/commands.h"
#include "cli/model_directory.h"
#include "cli/model_weights.h"
#include "cli/output_directory.h"
#include "cli/setup.h"
#include "ullage/error.h"

namespace ullage::cli {
namespace {

constexpr std::int64_t kPieceNumel = 1 << 20;

std::int64_t Numel(const NamedShape& parameter) {
  std::int64_t numel = 1;
  for (const std::int64_t size : parameter.shape) numel *= size;
  return numel;
}

}  // namespace

int RunExport(const ExportArguments& arguments, const CommandLine& command_line) {
  files::PosixFileSystem fs;
  CheckOutput(fs, arguments.output, arguments.model);
  const auto model = ModelOnMeta(arguments.model, /*num_labels=*/0);
  ModelWeights weights(files::WeightFiles::Open(fs, arguments.model), *model, {}, /*seed=*/0);
  if (!weights.new_parameters().empty()) {
    throw ConfigError(fmt::format("{}: has no weights for {}", arguments.model,
                                  fmt::join(weights.new_parameters(), ", ")),
                      "train the model first: ullage train");
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
      weights.Read(parameter.name, parameter.shape, first, values);
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
