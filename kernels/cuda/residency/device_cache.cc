#include "kernels/cuda/residency/device_cache.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sis::cuda {

DeviceCache TakeDeviceCache(
    const DeviceCacheOptions& options, const absl::StatusOr<int64_t>& free_bytes,
    const std::function<absl::StatusOr<std::unique_ptr<ResidentMemory>>(size_t bytes)>& allocate) {
  int64_t bytes;
  std::string reason = "as asked";
  if (options.bytes.has_value()) {
    bytes = *options.bytes;
  } else {
    if (!free_bytes.ok()) return {nullptr, absl::StrCat("none, ", free_bytes.status().message())};
    bytes = std::min(*free_bytes / 4, options.max_bytes);
    reason = bytes == options.max_bytes ? "all that there can be records"
                                        : "a quarter of what is free on the device";
  }
  if (bytes == 0) return {nullptr, absl::StrCat("none, ", reason)};
  if (bytes < static_cast<int64_t>(ResidentBlocks::kSlabBytes)) {
    return {nullptr, absl::StrCat("none, ", bytes, " bytes (", reason, ") are less than 4 MiB")};
  }
  absl::StatusOr<std::unique_ptr<ResidentMemory>> memory = allocate(static_cast<size_t>(bytes));
  if (!memory.ok()) {
    return {nullptr, absl::StrCat("none, ", bytes, " bytes (", reason, ") are not available, ",
                                  memory.status().message())};
  }
  return {*std::move(memory), absl::StrCat(bytes, " bytes, ", reason)};
}

}  // namespace sis::cuda
