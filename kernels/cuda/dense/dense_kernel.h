// Launches the dense kernel over arrays that are on the device. For .cu files.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/dense/dense_block.h"

namespace sis::cuda {

// Doesn't wait. Errors in the logits are found in *task.first_error; results of such positions are
// anything. kReduceLogits doesn't use task.part, kReduceShard writes nothing else, and
// kFinishShards doesn't use the logits.
cudaError_t LaunchDense(DenseStep step, const DenseTask& task, cudaStream_t stream);

}  // namespace sis::cuda
