// One program for a machine with a GPU: everything that a device must do as the host does, and how
// fast it does it.
//
//   device_tests [GoogleTest's flags]   the tests; of the conformance suite only what runs on CUDA
//   device_tests --bandwidth            a report instead
//
// Reads tests/golden in the working directory.
#include <gtest/gtest.h>

#include <iostream>
#include <string_view>

#include "kernels/cuda/bandwidth_report.h"
#include "kernels/cuda/dense_suite.h"
#include "kernels/cuda/device.h"
#include "tests/conformance/backends.h"

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
    on_device += backend->name().starts_with("cuda/") && backend->name() != "cuda/on_host";
  }
  EXPECT_EQ(on_device, 1);
}

TEST_F(DeviceTest, DenseGivesTheBytesOfTheHost) { ExpectTheBytesOfTheHost(*DenseOnDevice()); }
TEST_F(DeviceTest, DenseGivesTheBytesOfTheHostByShards) {
  ExpectTheBytesOfTheHostByShards(*DenseOnDevice());
}
TEST_F(DeviceTest, DenseFindsErrors) { ExpectErrorsAreFound(*DenseOnDevice()); }

}  // namespace
}  // namespace sis::cuda

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--bandwidth") {
    const absl::Status status = sis::cuda::ReportBandwidth(std::cout);
    if (status.ok()) return 0;
    std::cerr << status << std::endl;
    return absl::IsNotFound(status) ? 77 : 1;  // 77: skipped
  }
  GTEST_FLAG_SET(filter, "-*/scalar:*/cpu_*:*/cuda_on_host");
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
