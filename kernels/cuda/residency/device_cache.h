// How much memory of the device holds copies of blocks.
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
  // 0: none. Not given: a quarter of what is free, since a trainer may want the rest.
  std::optional<int64_t> bytes = std::nullopt;
  // More can't be of use, unless asked for.
  int64_t most_bytes = std::numeric_limits<int64_t>::max();
};

struct DeviceCache {
  std::unique_ptr<ResidentMemory> memory;  // null: none
  // How much, and why, for a log line.
  std::string description;
};

// Takes the memory by allocate(bytes). Never fails: if the memory can't be had there is none, and
// the description says so. `free_bytes` is what the device has free.
DeviceCache TakeDeviceCache(
    const DeviceCacheOptions& options, const absl::StatusOr<int64_t>& free_bytes,
    const std::function<absl::StatusOr<std::unique_ptr<ResidentMemory>>(size_t bytes)>& allocate);

}  // namespace sis::cuda
