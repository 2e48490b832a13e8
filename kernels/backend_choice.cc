#include "kernels/backend_choice.h"

#include <utility>

#include "kernels/cuda/evaluate/cuda_backend.h"
#include "kernels/decide/cpu_backend.h"

namespace sis {

std::optional<BackendKind> ParseBackendKind(std::string_view name) {
  if (name == "auto") return BackendKind::kAuto;
  if (name == "cpu") return BackendKind::kCpu;
  if (name == "cuda") return BackendKind::kCuda;
  return std::nullopt;
}

BackendChoice ChooseBackend(BackendKind kind, const cuda::DeviceCacheOptions& device_cache) {
  if (kind == BackendKind::kCpu) return {CpuBackend(), "as asked", ""};
  absl::StatusOr<cuda::CudaBackend> cuda = cuda::NewCudaBackend(CpuBackend(), device_cache);
  const bool asked = kind == BackendKind::kCuda;
  if (cuda.ok()) {
    return {std::move(cuda->backend), asked ? "as asked" : "auto", std::move(cuda->device_cache)};
  }
  return {CpuBackend(),
          (asked ? "asked for cuda, but " : "auto, ") + std::string(cuda.status().message()), ""};
}

}  // namespace sis
