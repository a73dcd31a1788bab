#include "cli/device_batch.h"

#include "torchx/device.h"

namespace ullage::cli {
namespace {

at::Tensor Moved(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.defined() || device.is_cpu()) return tensor;
  // torch's host allocator keeps the page-locked copy until the device has read it.
  return tensor.pin_memory().to(device, tensor.scalar_type(), /*non_blocking=*/true);
}

}  // namespace

c10::Device DeviceFor(bool cuda) {
  return cuda ? torchx::CurrentCuda() : c10::Device(c10::kCPU);
}

models::Batch OnDevice(const data::Batch& batch, c10::Device device) {
  return {Moved(batch.input_ids, device), Moved(batch.attention_mask, device),
          Moved(batch.labels, device), Moved(batch.position_ids, device),
          Moved(batch.document_ids, device)};
}

}  // namespace ullage::cli
