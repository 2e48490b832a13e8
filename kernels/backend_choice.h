// Which backend a process uses, and why.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/cuda/residency/device_cache.h"
#include "kernels/decide/backend.h"

namespace sis {

// kAuto: CUDA if there is a device that gives the right bytes, otherwise the CPU.
enum class BackendKind { kAuto, kCpu, kCuda };

// "auto", "cpu" or "cuda".
std::optional<BackendKind> ParseBackendKind(std::string_view name);

struct BackendChoice {
  std::unique_ptr<const Backend> backend;
  // Why this one, for a log line.
  std::string reason;
  // How much memory of the device holds copies of blocks, and why; empty without a device.
  std::string device_cache;
};

// Never fails: where there is no CUDA, or it doesn't work, the CPU takes its place, and the reason
// says so. That of CUDA falls back to the CPU by itself if the device fails later.
BackendChoice ChooseBackend(BackendKind kind, const cuda::DeviceCacheOptions& device_cache = {});

}  // namespace sis
