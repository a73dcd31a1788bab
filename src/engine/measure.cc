// What operators hold on the device beside what an engine does, found by running them.
#include <algorithm>

#include "engine/device_cap.h"
#include "engine/device_choice.h"
#include "torchx/device.h"
#include "torchx/device_memory.h"
#include "ullage/engine.h"

namespace ullage {
namespace {

// Memory and time of operators do not depend on values.
class Zeros final : public WeightSource {
 public:
  void Read(const std::string&, std::span<const std::int64_t>, std::int64_t,
            std::span<float> values) override {
    std::ranges::fill(values, 0.0f);
  }
};

// Everything on the host that can be there, and no more of it than a backward needs.
Settings ForMeasuring(Settings settings, int world_size) {
  settings.ullage.device_memory.reset();  // which is kept by a DeviceCap here
  settings.ullage.cuda_graphs = CudaGraphs::kOff;
  OffloadSettings host;
  host.device = OffloadDevice::kCpu;
  host.pin_memory = false;  // locking pages takes longer than one pass over them
  settings.zero.offload_optimizer = host;
  if (world_size == 1 || settings.zero.stage == 3) settings.zero.offload_param = host;
  settings.optimizer = {};
  settings.optimizer.type = OptimizerType::kSgd;
  return settings;
}

}  // namespace

std::int64_t MeasureOperatorBytes(ParameterList parameters, Settings settings,
                                  std::shared_ptr<Ranks> ranks, EngineOptions options,
                                  const std::function<void(Engine&)>& run) {
  if (!options.cuda || options.dry_run) return 0;
  engine::UseDeviceOf(*ranks);
  static_cast<void>(torchx::CurrentCuda());  // throws where there is none
  Zeros zeros;
  options.weights = &zeros;
  engine::DeviceCap cap(settings.ullage.device_memory, /*on_cuda=*/true);
  cap.Set(options.outside_bytes ? *options.outside_bytes : cap.MeasureOutside());
  // Tensors of the caller's that will be there in the run, too.
  std::int64_t bytes = torchx::ReadDeviceMemory().allocated;
  {
    const int world_size = ranks->world_size();
    Engine engine(std::move(parameters), ForMeasuring(std::move(settings), world_size),
                  std::move(ranks), options);
    torchx::RenewDevicePeaks();
    // What torch reserves for operators, which is more than it gives out.
    const std::int64_t before = torchx::ReadDeviceMemory().reserved;
    run(engine);
    bytes += torchx::ReadDeviceMemory().reserved_peak - before;
  }
  torchx::RenewDevicePeaks();
  // Segments grow in steps (torchx::PreferGrowingSegments), and when memory is short, a dozen
  // blocks that layers hold at a time may each keep one or two that nothing else can use.
  return bytes + bytes / 32 + (std::int64_t{192} << 20);
}

}  // namespace ullage
