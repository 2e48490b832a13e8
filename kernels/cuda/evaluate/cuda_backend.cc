#include "kernels/cuda/evaluate/cuda_backend.h"

#include <utility>
#include <vector>

#include "kernels/cuda/evaluate/device.h"
#include "kernels/cuda/evaluate/device_stage.h"
#include "kernels/cuda/evaluate/self_check.h"
#include "kernels/cuda/evaluate/staged_backend.h"
#include "kernels/cuda/evaluate/tuning.h"
#include "kernels/cuda/residency/device_blocks.h"
#include "kernels/decide/simd_backend.h"

namespace sis::cuda {

absl::StatusOr<CudaBackend> NewCudaBackend(std::unique_ptr<const Backend> fallback,
                                           const DeviceCacheOptions& options) {
  const absl::StatusOr<std::string> device = DeviceName();
  if (!device.ok()) return device.status();
  const absl::StatusOr<int64_t> free_bytes = FreeDeviceBytes();
  DeviceCache cache = TakeDeviceCache(options, free_bytes, NewDeviceBlocks);
  std::byte* const resident = cache.memory == nullptr ? nullptr : cache.memory->data();
  std::vector<StagePair> stages(kConcurrentCalls);
  for (StagePair& pair : stages) {
    for (std::unique_ptr<Stage>& stage : pair) {
      absl::StatusOr<std::unique_ptr<Stage>> fresh = NewDeviceStage(resident);
      if (!fresh.ok()) return fresh.status();
      stage = *std::move(fresh);
    }
  }
  auto backend = std::make_unique<const StagedBackend>(
      "cuda/" + *device, std::move(stages), std::move(fallback), std::move(cache.memory));
  if (absl::Status status = SelfCheck(*backend, SimdBackend()); !status.ok()) return status;
  return CudaBackend{std::move(backend), std::move(cache.description)};
}

}  // namespace sis::cuda
