// CUDA's errors as absl::Status. For .cu files.
#pragma once

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sis::cuda {

// `call` is the name of CUDA's function.
inline absl::Status ToStatus(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(call, " gave ", cudaGetErrorName(error), " (", cudaGetErrorString(error), ")"));
}

}  // namespace sis::cuda
