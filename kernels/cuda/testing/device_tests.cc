// One program for a machine with a GPU: tests that the device gives the host's results, and
// measures its speed.
//
//   device_tests [GoogleTest's flags]   the tests; of the conformance suite only what runs on CUDA
//   device_tests --bandwidth            reports the kernel's speed instead
//
// Reads tests/golden in the working directory.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <random>
#include <string_view>
#include <thread>

#include "kernels/cuda/evaluate/cuda_backend.h"
#include "kernels/cuda/evaluate/device.h"
#include "kernels/cuda/testing/bandwidth_report.h"
#include "kernels/cuda/testing/device_trap.h"
#include "kernels/testing/scalar_backend.h"
#include "tests/conformance/backends.h"
#include "tests/conformance/policy_pairs.h"
#include "tests/conformance/positions.h"

namespace sis::cuda {
namespace {

class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<std::string> device = DeviceName();
    if (!device.ok()) GTEST_SKIP() << device.status().message();
    std::cout << "device: " << *device << std::endl;
  }
};

TEST_F(DeviceTest, IsAmongTheBackendsOfTheConformanceSuite) {
  int on_device = 0;
  for (const Backend* backend : Backends()) {
    on_device +=
        backend->name().starts_with("cuda/") && !backend->name().starts_with("cuda/on_host");
  }
  EXPECT_EQ(on_device, 2);  // without and with resident blocks
}

// Blocks that the suite evaluates twice are resident the second time. Otherwise the suite would not
// test resident blocks.
TEST_F(DeviceTest, BlocksStay) {
  for (const Backend* backend : Backends()) {
    if (!backend->name().ends_with("_resident")) continue;
    std::mt19937_64 random(1);
    const Positions positions = RandomPositions(random, 10, 64);
    const ResidentBlocksStats before = backend->resident_blocks();
    Evaluate(*backend, {.top_k = 10, .draw = 1}, 1, 0, positions);
    const ResidentBlocksStats after = backend->resident_blocks();
    EXPECT_EQ(after.copies, before.copies + 1) << backend->name();
    EXPECT_EQ(after.hits, before.hits + 1) << backend->name();
  }
}

using DeviceDeathTest = DeviceTest;

// One thread evaluates repeatedly, before and after the device fails. Returns 0 if all results are
// equal.
int EvaluateWhileTheDeviceFails() {
  absl::StatusOr<CudaBackend> cuda =
      NewCudaBackend(std::make_unique<ScalarBackend>(), {.bytes = int64_t{1} << 24});
  if (!cuda.ok()) return 2;
  std::mt19937_64 random(1);
  const Positions positions = RandomPositions(random, 10, 4096);
  const EvaluateParameters parameters{.top_k = 10, .draw = 1};
  const Results expected = Evaluate(ScalarBackend(), parameters, 1, 0, positions);
  std::atomic<int> calls = 0;
  std::atomic<bool> failed = false;
  bool same = true;
  std::thread trainer([&] {
    for (int calls_after = 0; calls_after < 10; calls_after += failed) {
      same = same && SameBytes(Evaluate(*cuda->backend, parameters, 1, 0, positions), expected);
      ++calls;
    }
  });
  while (calls < 50) std::this_thread::yield();
  const absl::Status trapped = TrapDevice();
  failed = true;
  trainer.join();
  return !trapped.ok() && same ? 0 : 1;
}

// Runs in a separate process, because the device's failure is permanent.
TEST_F(DeviceDeathTest, TheAnswersAreTheSameWhenTheDeviceFails) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // Skips destructors, which would call the failed device.
  EXPECT_EXIT(std::_Exit(EvaluateWhileTheDeviceFails()), testing::ExitedWithCode(0),
              "backend: cuda/.* failed, from now on scalar");
}

}  // namespace
}  // namespace sis::cuda

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--bandwidth") {
    const absl::Status status = sis::cuda::ReportBandwidth(std::cout);
    if (status.ok()) return 0;
    std::cerr << status << std::endl;
    return absl::IsNotFound(status) ? 77 : 1;  // 77: skipped
  }
  GTEST_FLAG_SET(filter, "-*/scalar*:*/cpu_*:*/cuda_on_host*");
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
