#include "tests/conformance/backends.h"

#include <memory>

#include "kernels/cuda/host_stage.h"
#include "kernels/scalar_backend.h"
#include "kernels/simd_backend.h"

namespace sis {

std::vector<const Backend*> Backends() {
  static const ScalarBackend scalar;
  static const std::vector<SimdBackend> simd = SimdBackend::ForEveryTarget();
  static const std::unique_ptr<const Backend> cuda_on_host =
      cuda::BackendOnHostStages(std::make_unique<ScalarBackend>());
  std::vector<const Backend*> backends = {&scalar, cuda_on_host.get()};
  for (const SimdBackend& backend : simd) backends.push_back(&backend);
  return backends;
}

}  // namespace sis
