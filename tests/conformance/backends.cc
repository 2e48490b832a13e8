#include "tests/conformance/backends.h"

#include <cstdlib>
#include <deque>
#include <iostream>
#include <memory>

#include "kernels/cuda/evaluate/cuda_backend.h"
#include "kernels/cuda/testing/host_stage.h"
#include "kernels/decide/scalar_backend.h"
#include "kernels/decide/simd_backend.h"
#include "tests/conformance/as_ragged.h"
#include "tests/conformance/with_fixed_rows.h"

namespace sis {
namespace {

// The fallback of a backend that is under test: it fails the test if it is used for what that
// backend does itself.
class CurveOnly final : public Backend {
 public:
  std::string_view name() const override { return "curve_only"; }
  void Evaluate(const EvaluateParameters& parameters,
                std::span<const Stretch> stretches) const override {
    EXPECT_FALSE(parameters.prefix_curve.empty()) << "fell back to the CPU";
    ScalarBackend().Evaluate(parameters, stretches);
  }
};

// Null where there is no device. A device that is there must work.
std::unique_ptr<const Backend> CudaIfThere() {
  auto cuda = cuda::NewCudaBackend(std::make_unique<CurveOnly>(), {.bytes = int64_t{64} << 20});
  if (cuda.ok()) return std::move(cuda->backend);
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
  // Room for what is read twice, but so little that copies replace each other.
  static const std::unique_ptr<const Backend> much_memory = cuda::BackendOnHostStages(
      std::make_unique<CurveOnly>(), 2, size_t{48} << 10, cuda::When::kLate);
  static const std::unique_ptr<const Backend> little_memory = cuda::BackendOnHostStages(
      std::make_unique<CurveOnly>(), 3, size_t{8} << 10, cuda::When::kLate);
  static const WithFixedRows resident(*much_memory, "_resident");
  static const WithFixedRows thrashing(*little_memory, "_thrashing");
  static const std::unique_ptr<const Backend> cuda = CudaIfThere();
  std::vector<const Backend*> backends = {&scalar, cuda_on_host.get(), &resident, &thrashing};
  for (const SimdBackend& backend : simd) backends.push_back(&backend);
  static const std::deque<AsRagged> ragged = [&] {
    std::deque<AsRagged> read_directly;
    for (const Ragged what : {Ragged::kRecords, Ragged::kRecordsAndValues}) {
      read_directly.emplace_back(scalar, what);
      read_directly.emplace_back(*cuda_on_host, what);
      for (const SimdBackend& backend : simd) read_directly.emplace_back(backend, what);
    }
    return read_directly;
  }();
  for (const AsRagged& backend : ragged) backends.push_back(&backend);
  if (cuda != nullptr) {
    static const WithFixedRows cuda_resident(*cuda, "_resident");
    static const AsRagged cuda_ragged(*cuda, Ragged::kRecords);
    static const AsRagged cuda_ragged_values(*cuda, Ragged::kRecordsAndValues);
    backends.push_back(cuda.get());
    backends.push_back(&cuda_resident);
    backends.push_back(&cuda_ragged);
    backends.push_back(&cuda_ragged_values);
  }
  return backends;
}

}  // namespace sis
