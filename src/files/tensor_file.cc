#include "files/tensor_file.h"

#include <unordered_set>

#include <fmt/format.h>

#include "files/deepspeed_checkpoint.h"
#include "files/json_handler.h"
#include "files/torch_file.h"
#include "ullage/error.h"

namespace ullage::files {
namespace {

class Safetensors final : public TensorFile {
 public:
  explicit Safetensors(SafetensorsFile file) : file_(std::move(file)) {}

  const std::string& path() const override { return file_.path(); }
  const std::vector<TensorInfo>& tensors() const override { return file_.tensors(); }
  void Read(const TensorInfo& tensor, std::int64_t first, std::int64_t count,
            void* out) const override {
    file_.Read(tensor, first, count, out);
  }

 private:
  SafetensorsFile file_;
};

class PickledWeights final : public TensorFile {
 public:
  explicit PickledWeights(TorchFile file) : file_(std::move(file)) {
    const PickleValue root = file_.root();
    root.ExpectKind(PickleKind::kDict, "what was saved");
    std::unordered_set<std::string> names;
    for (std::size_t i = 0; i < root.size(); ++i) {
      const std::string& name = root.KeyAt(i).String("a name in the state dict");
      const std::string who = "tensor " + JsonHandler::Quoted(name);
      const PickledTensor& tensor = root.ValueAt(i).Tensor(who);
      if (!names.insert(name).second) {
        throw IoError(fmt::format("{}: {} comes twice", path(), who), "save the model again");
      }
      tensors_.push_back({.name = name,
                          .type = tensor.type,
                          .shape = tensor.shape,
                          .numel = tensor.numel,
                          .offset = file_.OffsetOf(tensor),
                          .bytes = tensor.numel * ElementBytes(tensor.type)});
      places_.push_back(&tensor);
    }
  }

  const std::string& path() const override { return file_.path(); }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  void Read(const TensorInfo& tensor, std::int64_t first, std::int64_t count,
            void* out) const override {
    file_.Read(*places_.at(static_cast<std::size_t>(&tensor - tensors_.data())), first, count, out);
  }

 private:
  TorchFile file_;
  std::vector<TensorInfo> tensors_;
  std::vector<const PickledTensor*> places_;  // of tensors_, in the file's own list
};

class DeepSpeedWeights final : public TensorFile {
 public:
  explicit DeepSpeedWeights(DeepSpeedCheckpoint checkpoint) : checkpoint_(std::move(checkpoint)) {
    for (const DeepSpeedCheckpoint::Parameter& parameter : checkpoint_.parameters()) {
      const ElementType type = checkpoint_.Type(DeepSpeedState::kWeight, parameter.name);
      tensors_.push_back({.name = parameter.name,
                          .type = type,
                          .shape = parameter.shape,
                          .numel = parameter.numel,
                          .bytes = parameter.numel * ElementBytes(type)});
    }
  }

  const std::string& path() const override { return checkpoint_.folder(); }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  std::string Note() const override {
    return fmt::format(
        "weights from {}, which DeepSpeed wrote at stage {} on {} ranks after {} steps; the "
        "optimizer starts anew (--resume-from goes on with it)",
        path(), checkpoint_.stage(), checkpoint_.ranks(), checkpoint_.global_steps());
  }
  void Read(const TensorInfo& tensor, std::int64_t first, std::int64_t count,
            void* out) const override {
    checkpoint_.Read(DeepSpeedState::kWeight, tensor.name, first, count, out);
  }

 private:
  DeepSpeedCheckpoint checkpoint_;
  std::vector<TensorInfo> tensors_;
};

}  // namespace

std::unique_ptr<TensorFile> OpenSafetensors(FileSystem& fs, const std::string& path) {
  return std::make_unique<Safetensors>(SafetensorsFile::Open(fs, path));
}

std::unique_ptr<TensorFile> OpenPickledWeights(FileSystem& fs, const std::string& path) {
  return std::make_unique<PickledWeights>(TorchFile::Open(fs, path));
}

std::unique_ptr<TensorFile> OpenDeepSpeedWeights(FileSystem& fs, const std::string& directory) {
  return std::make_unique<DeepSpeedWeights>(DeepSpeedCheckpoint::Open(fs, directory));
}

}  // namespace ullage::files
