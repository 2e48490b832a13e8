// The backend on a CUDA device.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/residency/device_cache.h"
#include "kernels/decide/backend.h"

namespace sis::cuda {

struct CudaBackend {
  std::unique_ptr<const Backend> backend;
  // The size of the device's memory for copies of blocks, with the reason, for a log line.
  std::string device_cache;
};

// Returns a backend on CUDA's default device. Allocates all of its memory, and compares a few
// evaluated positions with the CPU's backend. If the device fails later, `fallback` takes over
// (kernels/cuda/evaluate/staged_backend.h). Returns an error with CUDA's name for it if there is no
// device, no memory or no code for the device, if the bytes differ, or if this build has no CUDA.
// If only the device cache lacks memory, the backend works without a cache.
absl::StatusOr<CudaBackend> NewCudaBackend(std::unique_ptr<const Backend> fallback,
                                           const DeviceCacheOptions& options);

}  // namespace sis::cuda
