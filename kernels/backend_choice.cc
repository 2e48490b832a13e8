#include "kernels/backend_choice.h"

#include <utility>

#include "kernels/cpu_backend.h"
#include "kernels/cuda/cuda_backend.h"

namespace sis {

std::optional<BackendKind> ParseBackendKind(std::string_view name) {
  if (name == "auto") return BackendKind::kAuto;
  if (name == "cpu") return BackendKind::kCpu;
  if (name == "cuda") return BackendKind::kCuda;
  return std::nullopt;
}

BackendChoice ChooseBackend(BackendKind kind) {
  if (kind == BackendKind::kCpu) return {CpuBackend(), "as asked"};
  absl::StatusOr<std::unique_ptr<const Backend>> cuda = cuda::NewCudaBackend(CpuBackend());
  const bool asked = kind == BackendKind::kCuda;
  if (cuda.ok()) return {*std::move(cuda), asked ? "as asked" : "auto"};
  return {CpuBackend(),
          (asked ? "asked for cuda, but " : "auto, ") + std::string(cuda.status().message())};
}

}  // namespace sis
