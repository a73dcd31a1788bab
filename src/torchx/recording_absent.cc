// recording.h in a build without CUDA.
#include "torchx/device.h"
#include "torchx/recording.h"
#include "ullage/error.h"

namespace ullage::torchx {

struct Recording::Graph {};
Recording::Recording(std::unique_ptr<Graph> graph) : graph_(std::move(graph)) {}
Recording::~Recording() = default;

struct Recorder::State {};
Recorder::Recorder(c10::Device) {
  throw UnsupportedError(WhyNoCuda(), "set ullage.cuda_graphs to \"off\"");
}
Recorder::~Recorder() = default;
void Recorder::Run(const std::function<void()>& work) {
  work();
}
std::unique_ptr<Recording> Recorder::Record(const std::function<void()>&) {
  return nullptr;
}
void Recorder::Launch(Recording&) {}

}  // namespace ullage::torchx
