#include "kernels/cuda/residency/device_cache.h"

#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/testing/host_stage.h"

namespace sis::cuda {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

class DeviceCacheTest : public testing::Test {
 protected:
  DeviceCache Take(const DeviceCacheOptions& options, const absl::StatusOr<int64_t>& free_bytes) {
    return TakeDeviceCache(options, free_bytes,
                           [this](size_t bytes) -> absl::StatusOr<std::unique_ptr<ResidentMemory>> {
                             asked_.push_back(bytes);
                             if (!answer_.ok()) return answer_;
                             return std::make_unique<HostResidentMemory>(bytes);
                           });
  }

  absl::Status answer_;
  std::vector<size_t> asked_;
};

TEST_F(DeviceCacheTest, TakesAQuarterOfFreeMemory) {
  const DeviceCache cache = Take({}, 40 * kMiB);
  ASSERT_NE(cache.memory, nullptr);
  EXPECT_EQ(cache.memory->size(), 10 * kMiB);
  EXPECT_EQ(cache.description, "10485760 bytes, a quarter of what is free on the device");
}

TEST_F(DeviceCacheTest, TakesNoMoreThanIsOfUse) {
  const DeviceCache cache = Take({.max_bytes = 5 * kMiB}, 40 * kMiB);
  ASSERT_NE(cache.memory, nullptr);
  EXPECT_EQ(cache.memory->size(), 5 * kMiB);
  EXPECT_EQ(cache.description, "5242880 bytes, all that there can be records");
}

TEST_F(DeviceCacheTest, TakesTheRequestedBytes) {
  const DeviceCache cache = Take({.bytes = 7 * kMiB, .max_bytes = kMiB}, absl::InternalError("?"));
  ASSERT_NE(cache.memory, nullptr);
  EXPECT_EQ(cache.memory->size(), 7 * kMiB);
  EXPECT_EQ(cache.description, "7340032 bytes, as asked");
}

TEST_F(DeviceCacheTest, NoneIfThatIsAsked) {
  const DeviceCache cache = Take({.bytes = 0}, 40 * kMiB);
  EXPECT_EQ(cache.memory, nullptr);
  EXPECT_EQ(cache.description, "none, as asked");
  EXPECT_TRUE(asked_.empty());
}

TEST_F(DeviceCacheTest, NoneIfTheDeviceIsNearlyFullOrDoesNotSay) {
  EXPECT_EQ(Take({}, 3 * kMiB).description,
            "none, 786432 bytes (a quarter of what is free on the device) are less than 4 MiB");
  EXPECT_EQ(Take({}, absl::InternalError("cudaMemGetInfo gave x")).description,
            "none, cudaMemGetInfo gave x");
  EXPECT_TRUE(asked_.empty());
}

TEST_F(DeviceCacheTest, NoneIfItIsNotToBeHad) {
  answer_ = absl::InternalError("cudaMalloc gave cudaErrorMemoryAllocation (out of memory)");
  const DeviceCache cache = Take({.bytes = 7 * kMiB}, 40 * kMiB);
  EXPECT_EQ(cache.memory, nullptr);
  EXPECT_EQ(cache.description,
            "none, 7340032 bytes (as asked) are not available, cudaMalloc gave "
            "cudaErrorMemoryAllocation (out of memory)");
  EXPECT_EQ(asked_, std::vector<size_t>{7 * kMiB});
}

}  // namespace
}  // namespace sis::cuda
