// Chooses and allocates the device's memory for copies of blocks.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/residency/resident_blocks.h"

namespace sis::cuda {

struct DeviceCacheOptions {
  // 0: none. Unset: a quarter of the free memory, because a trainer may need the rest.
  std::optional<int64_t> bytes = std::nullopt;
  // Upper limit of the default, because more memory would be useless.
  int64_t max_bytes = std::numeric_limits<int64_t>::max();
};

struct DeviceCache {
  std::unique_ptr<ResidentMemory> memory;  // null: none
  // The size and its reason, for a log line.
  std::string description;
};

// Allocates the memory by allocate(bytes). Never fails: without memory the cache is empty, and the
// description gives the reason. `free_bytes` is the device's free memory.
DeviceCache TakeDeviceCache(
    const DeviceCacheOptions& options, const absl::StatusOr<int64_t>& free_bytes,
    const std::function<absl::StatusOr<std::unique_ptr<ResidentMemory>>(size_t bytes)>& allocate);

}  // namespace sis::cuda
