#include "tests/conformance/backends.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <vector>

#include "kernels/numerics/simd_targets.h"
// This header needs the one above: it then lists the targets of the kernels.
#include "hwy/targets.h"
#include "kernels/cuda/evaluate/cuda_backend.h"
#include "kernels/cuda/testing/host_stage.h"
#include "kernels/decide/simd_backend.h"
#include "kernels/testing/scalar_backend.h"
#include "tests/conformance/with_tags.h"

namespace sis {
namespace {

// The fallback of a backend that is under test: it fails the test if it is used for what that
// backend does itself.
class OnlyOfCpu final : public Backend {
 public:
  std::string_view name() const override { return "only_of_cpu"; }
  void Evaluate(const EvaluateParameters& parameters,
                std::span<const BackendRange> ranges) const override {
    const bool reduced = std::ranges::any_of(
        ranges, [](const BackendRange& range) { return range.current.reduced(); });
    EXPECT_TRUE(reduced || parameters.total_variation || !parameters.prefix_curve.empty())
        << "fell back to the CPU";
    ScalarBackend().Evaluate(parameters, ranges);
  }
};

// Returns a backend for every target of this machine, best first.
std::vector<SimdBackend> ForEveryTarget() {
  std::vector<SimdBackend> backends;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    backends.emplace_back();
  }
  hwy::SetSupportedTargetsForTest(0);
  return backends;
}

// Null where there is no device. A device that is there must work.
std::unique_ptr<const Backend> CudaIfThere() {
  auto cuda = cuda::NewCudaBackend(std::make_unique<OnlyOfCpu>(), {.bytes = int64_t{64} << 20});
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
  static const std::vector<SimdBackend> simd = ForEveryTarget();
  static const std::unique_ptr<const Backend> cuda_on_host =
      cuda::BackendOnHostStages(std::make_unique<OnlyOfCpu>());
  // Room for what is read twice, but so little that copies replace each other.
  static const std::unique_ptr<const Backend> much_memory = cuda::BackendOnHostStages(
      std::make_unique<OnlyOfCpu>(), 2, size_t{48} << 10, cuda::When::kLate);
  static const std::unique_ptr<const Backend> little_memory = cuda::BackendOnHostStages(
      std::make_unique<OnlyOfCpu>(), 3, size_t{8} << 10, cuda::When::kLate);
  static const WithTags resident(*much_memory, "_resident");
  static const WithTags thrashing(*little_memory, "_thrashing");
  static const std::unique_ptr<const Backend> cuda = CudaIfThere();
  std::vector<const Backend*> backends = {&scalar, cuda_on_host.get(), &resident, &thrashing};
  for (const SimdBackend& backend : simd) backends.push_back(&backend);
  if (cuda != nullptr) {
    static const WithTags cuda_resident(*cuda, "_resident");
    backends.push_back(cuda.get());
    backends.push_back(&cuda_resident);
  }
  return backends;
}

}  // namespace sis
