#include "kernels/cuda/evaluate/evaluate_block.h"
#include "kernels/cuda/evaluate/evaluate_kernel.h"
#include "kernels/cuda/evaluate/tuning.h"

namespace sis::cuda {
namespace {

// Adds as unsigned: in two's complement the sum has the same bits.
struct AtomicAdd {
  __device__ void operator()(int64_t& sum, int64_t addend) const {
    atomicAdd(reinterpret_cast<unsigned long long*>(&sum), static_cast<unsigned long long>(addend));
  }
};

__global__ void __launch_bounds__(kThreadsPerBlock, kBlocksPerMultiprocessor)
    Evaluate(const __grid_constant__ BatchView batch) {
  __shared__ ThreadBlockScratch scratch;
  const auto thread = static_cast<int>(threadIdx.x);
  Prepare(batch, blockIdx.x, thread, scratch);
  __syncthreads();
  EvaluateThread(batch, blockIdx.x, thread, scratch);
  __syncthreads();
  AddSums(batch, blockIdx.x, thread, scratch, AtomicAdd());
}

}  // namespace

cudaError_t LaunchEvaluate(const BatchView& batch, cudaStream_t stream) {
  Evaluate<<<ThreadBlockCount(batch.tile_count), kThreadsPerBlock, 0, stream>>>(batch);
  return cudaGetLastError();
}

}  // namespace sis::cuda
