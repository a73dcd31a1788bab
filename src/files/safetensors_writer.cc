#include "files/safetensors_writer.h"

#include <unordered_set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "files/safetensors_header.h"
#include "ullage/error.h"

namespace ullage::files {

SafetensorsWriter::SafetensorsWriter(FileSystem& fs, std::string path,
                                     const std::vector<TensorDeclaration>& tensors,
                                     const std::map<std::string, std::string>& metadata)
    : fs_(fs), path_(std::move(path)), partial_path_(path_ + ".partial") {
  std::vector<TensorInfo> infos;
  std::unordered_set<std::string> names;
  for (const TensorDeclaration& tensor : tensors) {
    if (tensor.name == "__metadata__" || !names.insert(tensor.name).second) {
      throw ConfigError(fmt::format("{}: a tensor cannot be named \"{}\"", path_, tensor.name),
                        "every tensor needs a name of its own");
    }
    TensorInfo info{.name = tensor.name, .type = tensor.type, .shape = tensor.shape};
    info.numel = CheckedNumel(info.shape, info.type);
    info.bytes = info.numel * ElementBytes(info.type);
    if (__builtin_add_overflow(data_bytes_, info.bytes, &data_bytes_)) {
      throw ConfigError(fmt::format("{}: the tensors have more than 2^63 bytes", path_));
    }
    infos.push_back(std::move(info));
  }
  try {
    header_ = FormatHeader(infos, metadata);
  } catch (const nlohmann::json::exception& error) {  // text that is not UTF-8
    throw ConfigError(fmt::format("{}: {}", path_, error.what()),
                      "names and metadata must be UTF-8");
  }
  if (static_cast<std::int64_t>(header_.size()) > SafetensorsFile::kMaxHeaderBytes) {
    throw ConfigError(fmt::format("{}: the header has {} bytes, at most {} can be read back", path_,
                                  header_.size(), SafetensorsFile::kMaxHeaderBytes),
                      "spread the tensors over several files");
  }
  file_ = fs_.Create(partial_path_);
  try {
    file_->Append(header_.data(), static_cast<std::int64_t>(header_.size()));
  } catch (...) {  // the destructor of an object that was never made does not run
    file_.reset();
    try {
      fs_.Remove(partial_path_);
    } catch (const IoError&) {  // the first error says what happened
    }
    throw;
  }
}

SafetensorsWriter::~SafetensorsWriter() {
  if (!file_) return;
  file_.reset();
  try {
    fs_.Remove(partial_path_);
  } catch (const IoError&) {  // only a partial file is left behind, and the next writer empties it
  }
}

void SafetensorsWriter::Append(const void* data, std::int64_t bytes) {
  if (!file_ || bytes < 0 || bytes > data_bytes_ - appended_bytes_) {
    throw StateError(fmt::format("{}: {} bytes were appended behind {} of the {} declared", path_,
                                 bytes, appended_bytes_, data_bytes_));
  }
  file_->Append(data, bytes);
  appended_bytes_ += bytes;
}

void SafetensorsWriter::Finish() {
  if (!file_ || appended_bytes_ != data_bytes_) {
    throw StateError(fmt::format("{}: finished after {} of the {} declared bytes", path_,
                                 appended_bytes_, data_bytes_));
  }
  file_->Sync();
  file_->Close();
  fs_.Rename(partial_path_, path_);
  file_.reset();
  fs_.SyncDirectory(ParentOf(path_));
}

}  // namespace ullage::files
