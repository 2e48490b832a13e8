// Launches the kernel over a batch that is on the device. For .cu files.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/evaluate/batch_view.h"

namespace sis::cuda {

// All pointers of the batch are the device's, and its sums zero. Doesn't wait for the kernel.
cudaError_t LaunchEvaluate(const BatchView& batch, cudaStream_t stream);

}  // namespace sis::cuda
