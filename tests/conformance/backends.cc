#include "tests/conformance/backends.h"

#include <cstdlib>
#include <iostream>
#include <memory>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/host_stage.h"
#include "kernels/scalar_backend.h"
#include "kernels/simd_backend.h"

namespace sis {
namespace {

// Behind a backend that is under test: what that one does itself must not end up here.
class CurveOnly final : public Backend {
 public:
  std::string_view name() const override { return "curve_only"; }
  void Evaluate(const EvaluateParameters& parameters,
                std::span<const Segment> segments) const override {
    EXPECT_FALSE(parameters.prefix_curve.empty()) << "fell back to the CPU";
    ScalarBackend().Evaluate(parameters, segments);
  }
};

// Null where there is no device. A device that is there must work.
std::unique_ptr<const Backend> CudaIfThere() {
  auto cuda = cuda::NewCudaBackend(std::make_unique<CurveOnly>());
  if (cuda.ok()) return *std::move(cuda);
  if (!absl::IsNotFound(cuda.status())) {
    std::cerr << cuda.status() << std::endl;
    std::abort();
  }
  return nullptr;
}

}  // namespace

std::vector<const Backend*> Backends() {
  static const ScalarBackend scalar;
  static const std::vector<SimdBackend> simd = SimdBackend::ForEveryTarget();
  static const std::unique_ptr<const Backend> cuda_on_host =
      cuda::BackendOnHostStages(std::make_unique<CurveOnly>());
  static const std::unique_ptr<const Backend> cuda = CudaIfThere();
  std::vector<const Backend*> backends = {&scalar, cuda_on_host.get()};
  for (const SimdBackend& backend : simd) backends.push_back(&backend);
  if (cuda != nullptr) backends.push_back(cuda.get());
  return backends;
}

}  // namespace sis
