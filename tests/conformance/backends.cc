#include "tests/conformance/backends.h"

#include "kernels/scalar_backend.h"
#include "kernels/simd_backend.h"

namespace sis {

std::vector<const Backend*> Backends() {
  static const ScalarBackend scalar;
  static const std::vector<SimdBackend> simd = SimdBackend::ForEveryTarget();
  std::vector<const Backend*> backends = {&scalar};
  for (const SimdBackend& backend : simd) backends.push_back(&backend);
  return backends;
}

}  // namespace sis
