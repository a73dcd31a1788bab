#include "files/deepspeed_checkpoint.h"

#include <algorithm>

#include <fmt/format.h>

#include "files/deepspeed_builder.h"
#include "files/deepspeed_files.h"
#include "files/json_handler.h"
#include "ullage/error.h"

namespace ullage::files {
namespace {

std::size_t Index(DeepSpeedState state) {
  return static_cast<std::size_t>(state);
}

const char* NameOf(DeepSpeedState state) {
  constexpr const char* kNames[] = {"weights", "exp_avg", "exp_avg_sq"};
  return kNames[Index(state)];
}

}  // namespace

bool DeepSpeedCheckpoint::IsOne(FileSystem& fs, const std::string& directory) {
  const auto files = FindDeepSpeedFiles(fs, directory);
  return files && !(files->model.empty() && files->optimizer.empty());
}

DeepSpeedCheckpoint DeepSpeedCheckpoint::Open(FileSystem& fs, const std::string& directory,
                                              bool prefer_universal) {
  const auto files = FindDeepSpeedFiles(fs, directory, prefer_universal);
  if (!files || files->model.empty()) {
    throw IoError((files ? files->folder : directory) + ": holds no *_model_states.pt of DeepSpeed",
                  "name the folder that save_checkpoint was given, or the one that `latest` names");
  }
  DeepSpeedCheckpoint result(fs);
  DeepSpeedBuilder(fs, *files, result).Build();
  return result;
}

const DeepSpeedCheckpoint::Parameter* DeepSpeedCheckpoint::Find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &parameters_[found->second];
}

const DeepSpeedCheckpoint::Parameter& DeepSpeedCheckpoint::Get(const std::string& name) const {
  if (const Parameter* parameter = Find(name)) return *parameter;
  throw IoError(fmt::format("{}: has no parameter {} among its {}", folder_,
                            JsonHandler::Quoted(name), parameters_.size()),
                "check that the checkpoint is of this model");
}

const DeepSpeedCheckpoint::Parameter& DeepSpeedCheckpoint::Stored(const std::string& name) const {
  const Parameter& parameter = Get(name);
  return parameter.shared_with.empty() ? parameter : Get(parameter.shared_with);
}

bool DeepSpeedCheckpoint::Has(DeepSpeedState state, const std::string& name) const {
  return Stored(name).has[Index(state)];
}

ElementType DeepSpeedCheckpoint::Type(DeepSpeedState state, const std::string& name) const {
  return Stored(name).type[Index(state)];
}

void DeepSpeedCheckpoint::Read(DeepSpeedState state, const std::string& name, std::int64_t first,
                               std::int64_t count, void* out) const {
  const Parameter& parameter = Stored(name);
  if (!parameter.has[Index(state)]) {
    throw IoError(
        fmt::format("{}: does not hold the {} of {}", folder_, NameOf(state),
                    JsonHandler::Quoted(name)),
        moments_note_.empty() ? "its optimizer kept none: start from the weights" : moments_note_);
  }
  if (first < 0 || count < 0 || first > parameter.numel || count > parameter.numel - first) {
    throw IoError(fmt::format("{}: {} elements from {} of parameter {} were asked for, it has {}",
                              folder_, count, first, JsonHandler::Quoted(name), parameter.numel));
  }
  const std::int64_t element = ElementBytes(parameter.type[Index(state)]);
  auto* to = static_cast<char*>(out);
  for (const Piece& piece : parameter.pieces[Index(state)]) {
    if (count == 0) break;
    if (first >= piece.count) {
      first -= piece.count;
      continue;
    }
    const std::int64_t taken = std::min(count, piece.count - first);
    fs_->OpenForRead(files_[piece.file])
        ->ReadAt(piece.offset + first * element, to, taken * element);
    to += taken * element;
    count -= taken;
    first = 0;
  }
}

}  // namespace ullage::files
