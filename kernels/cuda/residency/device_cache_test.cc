#include "kernels/cuda/residency/device_cache.h"

#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "kernels/cuda/testing/host_stage.h"

namespace sis::cuda {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(DeviceCacheTest, TakesWhatIsAskedOrAQuarterOfWhatIsFreeAndSaysWhy) {
  struct Case {
    DeviceCacheOptions options;
    absl::StatusOr<int64_t> free_bytes;
    std::string description;
    size_t asked = 0;  // of the device
    absl::Status answer = {};
  };
  const Case cases[] = {
      {{}, 40 * kMiB, "10485760 bytes, a quarter of what is free on the device", 10 * kMiB},
      {{.max_bytes = 5 * kMiB},
       40 * kMiB,
       "5242880 bytes, all that there can be records",
       5 * kMiB},
      {{.bytes = 7 * kMiB, .max_bytes = kMiB},
       absl::InternalError("?"),
       "7340032 bytes, as asked",
       7 * kMiB},
      {{.bytes = 0}, 40 * kMiB, "none, as asked"},
      {{},
       3 * kMiB,
       "none, 786432 bytes (a quarter of what is free on the device) are less than 4 MiB"},
      {{}, absl::InternalError("cudaMemGetInfo gave x"), "none, cudaMemGetInfo gave x"},
      {{.bytes = 7 * kMiB},
       40 * kMiB,
       "none, 7340032 bytes (as asked) are not available, cudaMalloc gave x",
       7 * kMiB,
       absl::InternalError("cudaMalloc gave x")},
  };
  for (const Case& c : cases) {
    size_t asked = 0;
    const auto allocate = [&](size_t bytes) -> absl::StatusOr<std::unique_ptr<ResidentMemory>> {
      asked = bytes;
      if (!c.answer.ok()) return c.answer;
      return std::make_unique<HostResidentMemory>(bytes);
    };
    const DeviceCache cache = TakeDeviceCache(c.options, c.free_bytes, allocate);
    EXPECT_EQ(cache.description, c.description);
    EXPECT_EQ(asked, c.asked) << c.description;
    const size_t taken = c.answer.ok() ? c.asked : 0;
    EXPECT_EQ(cache.memory == nullptr ? 0 : cache.memory->size(), taken) << c.description;
  }
}

}  // namespace
}  // namespace sis::cuda
