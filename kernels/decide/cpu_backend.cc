#include "kernels/decide/cpu_backend.h"

#include "kernels/decide/simd_backend.h"

namespace sis {

std::unique_ptr<const Backend> CpuBackend() { return std::make_unique<SimdBackend>(); }

}  // namespace sis
