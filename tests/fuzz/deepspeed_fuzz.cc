// libFuzzer: any two pickles as the model and the optimizer file of a DeepSpeed checkpoint. The
// first byte says how many ranks there are and whether the form is the universal one.
#include <cstdint>
#include <map>
#include <vector>

#include "files/deepspeed_checkpoint.h"
#include "memory_file.h"
#include "torch_zip.h"
#include "ullage/error.h"

namespace {

using namespace ullage::files;

// A folder of files whose contents are given by the ends of their names.
class Folder final : public FileSystem {
 public:
  Folder(std::string model, std::string optimizer, int ranks, bool universal)
      : model_(std::move(model)), optimizer_(std::move(optimizer)), universal_(universal) {
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string start = "zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_";
      names_.push_back(start + "model_states.pt");
      if (!universal) names_.push_back(start + "optim_states.pt");
    }
  }

  std::unique_ptr<ReadableFile> OpenForRead(const std::string& path) override {
    return (path.ends_with("model_states.pt") ? model_ : optimizer_).OpenForRead(path);
  }
  std::vector<std::string> List(const std::string&) override { return names_; }
  std::optional<FileStatus> Stat(const std::string& path) override {
    if (path.ends_with("latest") || path.ends_with("latest_universal")) return std::nullopt;
    if (path == "f") return FileStatus{.is_directory = true};
    if (path.ends_with("/zero")) {
      return universal_ ? std::optional(FileStatus{.is_directory = true}) : std::nullopt;
    }
    return FileStatus{.is_regular = true};
  }
  std::unique_ptr<WritableFile> Create(const std::string& path) override {
    return model_.Create(path);
  }
  std::unique_ptr<WritableFile> OpenForAppend(const std::string& path) override {
    return model_.OpenForAppend(path);
  }
  void Rename(const std::string& from, const std::string& to) override { model_.Rename(from, to); }
  bool Exchange(const std::string& a, const std::string& b) override {
    return model_.Exchange(a, b);
  }
  void SyncDirectory(const std::string& path) override { model_.SyncDirectory(path); }
  void CreateDirectory(const std::string& path) override { model_.CreateDirectory(path); }
  void Remove(const std::string& path) override { model_.Remove(path); }

 private:
  testsupport::MemoryFile model_;
  testsupport::MemoryFile optimizer_;
  bool universal_;
  std::vector<std::string> names_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  if (bytes < 2) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, bytes - 1);
  // The second pickle begins where a protocol follows an end.
  const std::size_t cut = std::min(text.find(".\x80"), text.size() - 1) + 1;
  const auto zip = [](const std::string& pickle) {
    return testsupport::TorchZip(pickle,
                                 {{"0", std::string(256, 'x')}, {"1", std::string(256, 'y')}});
  };
  Folder fs(zip(text.substr(0, cut)), zip(text.substr(cut)), data[0] % 3 + 1, data[0] % 8 > 5);
  try {
    const auto checkpoint = DeepSpeedCheckpoint::Open(fs, "f");
    for (const auto& parameter : checkpoint.parameters()) {
      for (const auto state :
           {DeepSpeedState::kWeight, DeepSpeedState::kExpAvg, DeepSpeedState::kExpAvgSq}) {
        if (!checkpoint.Has(state, parameter.name)) continue;
        const std::int64_t count = std::min<std::int64_t>(parameter.numel, 1000);
        std::vector<char> out(
            static_cast<std::size_t>(count * ElementBytes(checkpoint.Type(state, parameter.name))));
        checkpoint.Read(state, parameter.name, parameter.numel - count, count, out.data());
      }
    }
  } catch (const ullage::IoError&) {
  } catch (const ullage::UnsupportedError&) {
  }
  return 0;
}
