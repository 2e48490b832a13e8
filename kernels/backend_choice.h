// Chooses the backend of a process.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/cuda/residency/device_cache.h"
#include "kernels/decide/backend.h"

namespace sis {

// kAuto: CUDA if a device passes the self-check, otherwise the CPU.
enum class BackendKind { kAuto, kCpu, kCuda };

// Parses "auto", "cpu" or "cuda".
std::optional<BackendKind> ParseBackendKind(std::string_view name);

struct BackendChoice {
  std::unique_ptr<const Backend> backend;
  // The reason of the choice, for a log line.
  std::string reason;
  // The device's memory for copies of blocks, with the reason; empty without a device.
  std::string device_cache;
};

// Never fails: without a working CUDA device, chooses the CPU, and gives the reason. The CUDA
// backend falls back to the CPU if the device fails later.
BackendChoice ChooseBackend(BackendKind kind, const cuda::DeviceCacheOptions& device_cache = {});

}  // namespace sis
