#include "kernels/cuda/cuda_backend.h"

#include <utility>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/device_stage.h"
#include "kernels/cuda/self_check.h"
#include "kernels/cuda/staged_backend.h"
#include "kernels/cuda/tuning.h"

namespace sis::cuda {

absl::StatusOr<std::unique_ptr<const Backend>> NewCudaBackend(
    std::unique_ptr<const Backend> fallback) {
  const absl::StatusOr<std::string> device = DeviceName();
  if (!device.ok()) return device.status();
  std::vector<StagePair> stages(kConcurrentCalls);
  for (StagePair& pair : stages) {
    for (std::unique_ptr<Stage>& stage : pair) {
      absl::StatusOr<std::unique_ptr<Stage>> fresh = NewDeviceStage();
      if (!fresh.ok()) return fresh.status();
      stage = *std::move(fresh);
    }
  }
  auto backend = std::make_unique<const StagedBackend>("cuda/" + *device, std::move(stages),
                                                       std::move(fallback));
  if (absl::Status status = SelfCheck(*backend); !status.ok()) return status;
  return std::unique_ptr<const Backend>(std::move(backend));
}

}  // namespace sis::cuda
