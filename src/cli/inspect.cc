// `ullage inspect`: what a checkpoint holds, and whether it is complete and sound.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/bytes.h"
#include "checkpoint/block_checksums.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_reader.h"
#include "cli/commands.h"
#include "cli/output_directory.h"
#include "cli/run_state.h"
#include "kernels/cast.h"
#include "ullage/error.h"

namespace ullage::cli {
namespace {

using checkpoint::CheckpointReader;
using checkpoint::Manifest;
using checkpoint::Tensor;
using Json = nlohmann::ordered_json;

std::int64_t TotalBytes(const Manifest& manifest) {
  std::int64_t bytes = 0;
  for (const checkpoint::File& file : manifest.files) bytes += file.bytes;
  return bytes;
}

// Bytes of all parts of a tensor.
std::int64_t BytesOf(const Manifest& manifest, const Tensor& tensor) {
  std::int64_t bytes = 0;
  for (const std::string& part : manifest.PartsOf(tensor)) {
    bytes += tensor.numel * files::ElementBytes(Manifest::TypeOf(tensor, part));
  }
  return bytes;
}

// L2 norm of a part, added up in double; nothing for types that are no numbers to add.
std::optional<double> Norm(const CheckpointReader& reader, const Tensor& tensor,
                           const std::string& part) {
  constexpr std::int64_t kPieceNumel = 256 << 10;
  std::optional<DType> dtype;
  const files::ElementType type = Manifest::TypeOf(tensor, part);
  for (const DType candidate : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    if (files::ToElementType(candidate) == type) dtype = candidate;
  }
  if (!dtype) return std::nullopt;
  std::vector<std::byte> raw;
  std::vector<float> values;
  double squares = 0;
  for (std::int64_t first = 0; first < tensor.numel; first += kPieceNumel) {
    const std::int64_t count = std::min(kPieceNumel, tensor.numel - first);
    raw.resize(static_cast<std::size_t>(count * ElementBytes(*dtype)));
    values.resize(static_cast<std::size_t>(count));
    reader.ReadInto({&tensor, part, first, count}, raw.data());
    kernels::Convert(*dtype, raw.data(), DType::kFloat32, values.data(), count);
    for (const float value : values) squares += static_cast<double>(value) * value;
  }
  return std::sqrt(squares);
}

class Inspection {
 public:
  Inspection(files::FileSystem& fs, const InspectArguments& arguments, std::string path)
      : arguments_(arguments), reader_(fs, std::move(path)) {}

  int Run() {
    if (arguments_.verify) reader_.VerifyAll();
    if (arguments_.json) {
      PrintJson();
    } else {
      PrintText();
    }
    return 0;
  }

 private:
  const Manifest& manifest() const { return reader_.manifest(); }

  void PrintText() const {
    const Manifest& m = manifest();
    fmt::print("{}: complete{}\n", reader_.directory(),
               arguments_.verify
                   ? fmt::format(", every one of its {} verified", FormatBytes(TotalBytes(m)))
                   : "");
    fmt::print(
        "steps: {} applied, {} skipped; seed {}; next learning rate {:.6g}; loss scale {:g}\n",
        m.applied_steps, m.skipped_steps, m.seed, m.lr, m.loss_scale.scale);
    fmt::print("written by {} on {} ranks at stage {}, weights in {}; optimizer {} with {}\n",
               m.written_by, m.world_size, m.stage, m.precision, m.optimizer,
               m.moments.empty() ? "no moments" : fmt::format("{}", fmt::join(m.moments, ", ")));
    if (!m.client_state.empty()) fmt::print("of its writer: {}\n", m.client_state);
    fmt::print("\n{:>12}  {:>8}  file\n", "bytes", "blocks");
    for (const checkpoint::File& file : m.files) {
      fmt::print("{:>12}  {:>8}  {}\n", file.bytes, file.checksums.size(), file.name);
    }
    fmt::print("\n{:>12}  {:8}  {:5}  {:>6}  name\n", "bytes", "role", "dtype", "slices");
    for (const Tensor& tensor : m.tensors) {
      fmt::print(
          "{:>12}  {:8}  {:5}  {:>6}  {} {}{}\n", BytesOf(m, tensor), Name(tensor.role),
          files::Name(tensor.type), tensor.slices.size(), tensor.name,
          files::FormatShape(tensor.shape),
          tensor.aliases.empty() ? "" : fmt::format(" = {}", fmt::join(tensor.aliases, " = ")));
      if (!arguments_.norms) continue;
      for (const std::string& part : m.PartsOf(tensor)) {
        if (const auto norm = Norm(reader_, tensor, part)) {
          fmt::print("{:>12}  norm of {}: {:.9g}\n", "", part, *norm);
        }
      }
    }
    fmt::print("\n{} tensors, {}\n", m.tensors.size(), FormatBytes(TotalBytes(m)));
  }

  void PrintJson() const {
    const Manifest& m = manifest();
    Json files = Json::array(), tensors = Json::array(), settings = Json::object();
    for (const checkpoint::File& file : m.files) {
      files.push_back({{"name", file.name}, {"bytes", file.bytes}});
    }
    for (const Tensor& tensor : m.tensors) {
      Json row = {{"name", tensor.name},
                  {"role", Name(tensor.role)},
                  {"dtype", files::Name(tensor.type)},
                  {"shape", tensor.shape},
                  {"bytes", BytesOf(m, tensor)},
                  {"slices", tensor.slices.size()}};
      if (!tensor.aliases.empty()) row["aliases"] = tensor.aliases;
      if (arguments_.norms) {
        for (const std::string& part : m.PartsOf(tensor)) {
          if (const auto norm = Norm(reader_, tensor, part)) row["norms"][part] = *norm;
        }
      }
      tensors.push_back(std::move(row));
    }
    for (const auto& [key, value] : m.settings) settings[key] = value;
    const Json json = {{"path", reader_.directory()},
                       {"complete", true},
                       {"verified", arguments_.verify},
                       {"written_by", m.written_by},
                       {"applied_steps", m.applied_steps},
                       {"skipped_steps", m.skipped_steps},
                       {"seed", m.seed},
                       {"lr", m.lr},
                       {"loss_scale", m.loss_scale.scale},
                       {"world_size", m.world_size},
                       {"stage", m.stage},
                       {"precision", m.precision},
                       {"optimizer", m.optimizer},
                       {"moments", m.moments},
                       {"client_state", m.client_state},
                       {"bytes", TotalBytes(m)},
                       {"settings", std::move(settings)},
                       {"files", std::move(files)},
                       {"tensors", std::move(tensors)}};
    fmt::print("{}\n", json.dump(1, ' ', false, Json::error_handler_t::replace));
  }

  const InspectArguments& arguments_;
  const CheckpointReader reader_;
};

// One line for each checkpoint of a folder.
void PrintFolder(const checkpoint::CheckpointFolder& folder) {
  for (const std::int64_t steps : folder.Steps()) {
    std::string why_not;
    const bool complete = folder.IsComplete(steps, &why_not);
    fmt::print("{}: {}\n", folder.PathOf(steps),
               complete ? "complete" : "not complete: " + why_not);
  }
  fmt::print("\n");
}

}  // namespace

int RunInspect(const InspectArguments& arguments) {
  files::PosixFileSystem fs;
  std::vector<std::string> lines;
  std::string path = arguments.path;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  if (!arguments.json && !fs.Stat(path + "/" + checkpoint::kManifestFile)) {
    for (const std::string& folder : {path, path + "/" + kCheckpoints}) {
      const checkpoint::CheckpointFolder checkpoints(fs, folder);
      if (!checkpoints.Steps().empty()) PrintFolder(checkpoints);
    }
  }
  return Inspection(fs, arguments, ResolveCheckpoint(fs, path, lines)).Run();
}

}  // namespace ullage::cli
