// recording.h in a build with CUDA.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <utility>

#include "torchx/device.h"
#include "torchx/recording.h"

namespace ullage::torchx {

struct Recording::Graph {
  at::cuda::CUDAGraph graph;
};

Recording::Recording(std::unique_ptr<Graph> graph) : graph_(std::move(graph)) {}
Recording::~Recording() = default;

struct Recorder::State {
  explicit State(c10::Device the_device)
      : device(the_device),
        stream(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, the_device.index())),
        pool(at::cuda::graph_pool_handle()) {}

  const c10::Device device;
  const c10::cuda::CUDAStream stream;
  const at::cuda::MempoolId_t pool;
};

Recorder::Recorder(c10::Device device) : state_(std::make_unique<State>(device)) {}
Recorder::~Recorder() = default;

void Recorder::Run(const std::function<void()>& work) {
  const Queue callers = Queue::OfOperators(state_->device);
  const c10::cuda::CUDAStreamGuard guard(state_->stream);
  const Queue own = Queue::OfOperators(state_->device);
  own.After(callers.Mark());
  struct Return {
    ~Return() { callers.After(own.Mark()); }
    const Queue &callers, &own;
  } const back{callers, own};
  work();
}

std::unique_ptr<Recording> Recorder::Record(const std::function<void()>& work) {
  auto recorded = std::make_unique<Recording::Graph>();
  Run([&] {
    // What was held for work before is given back: recordings have memory of their own.
    c10::cuda::CUDACachingAllocator::emptyCache();
    // Other threads may use CUDA as they like, such as one that makes page-locked batches.
    recorded->graph.capture_begin(state_->pool, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      try {
        recorded->graph.capture_end();
      } catch (const std::exception&) {  // the first error tells why
      }
      throw;
    }
    recorded->graph.capture_end();
  });
  return std::unique_ptr<Recording>(new Recording(std::move(recorded)));
}

void Recorder::Launch(Recording& recording) {
  recording.graph_->graph.replay();
}

}  // namespace ullage::torchx
