// Launches the kernel on a batch in device memory. For .cu files.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/evaluate/batch_view.h"

namespace sis::cuda {

// All pointers of the batch must be to device memory, and its sums zero. Doesn't wait for the
// kernel.
cudaError_t LaunchEvaluate(const BatchView& batch, cudaStream_t stream);

}  // namespace sis::cuda
