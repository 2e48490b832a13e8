#include "kernels/cuda/dense/dense_block.h"
#include "kernels/cuda/dense/dense_kernel.h"

namespace sis::cuda {
namespace {

constexpr unsigned kAllLanes = 0xffffffff;

struct ReportFirst {
  unsigned long long* first_error;
  __device__ void operator()(unsigned long long error) const { atomicMin(first_error, error); }
};

__device__ float WarpMaximum(float x) {
  for (int distance = kDenseWarpThreads / 2; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, x, distance);
    x = other > x ? other : x;
  }
  return x;
}

// The tree of docs/dense_numerics.md from h = 16 on; both partners of an addition do it.
__device__ float WarpSum(float x) {
  for (int distance = kDenseWarpThreads / 2; distance > 0; distance /= 2) {
    x = x + __shfl_xor_sync(kAllLanes, x, distance);
  }
  return x;
}

__device__ void SumWarps(const DenseTask& task, uint32_t position, int thread,
                         DenseScratch& scratch) {
  const int lane = thread % kDenseWarpThreads;
  const int warp = thread / kDenseWarpThreads;
  const ReportFirst report{task.first_error};
  ExpSum sum;
  for (int32_t block = FirstBlock(task) + warp; block < EndBlock(task); block += kDenseWarps) {
    const LaneLogits logits = LoadLane(task, position, block, lane, report);
    const float maximum = WarpMaximum(LaneMaximum(logits));
    if (maximum == kMinusInfinity) continue;
    const float reference = BlockReference(maximum);
    const float block_sum = WarpSum(LaneSum(logits, reference));
    if (lane == 0) sum.AddBlock(reference, block_sum);
  }
  if (lane == 0) scratch.warp_sums[warp] = sum;
}

template <class Source>
__device__ void Finish(const Source& source, const DenseTask& task, uint32_t position, int thread,
                       DenseScratch& scratch) {
  if (thread == 0) {
    FinishSum(source, task, position, scratch, ReportFirst{task.first_error});
  }
  __syncthreads();
  FinishSlots(source, task, position, thread, scratch);
  __syncthreads();
  if (thread == 0) FinishPosition(source, task, position, scratch);
}

__global__ void __launch_bounds__(kDenseThreads)
    ReduceLogits(const __grid_constant__ DenseTask task) {
  __shared__ DenseScratch scratch;
  const auto thread = static_cast<int>(threadIdx.x);
  SumWarps(task, blockIdx.x, thread, scratch);
  __syncthreads();
  Finish(WholeRow(), task, blockIdx.x, thread, scratch);
}

__global__ void __launch_bounds__(kDenseThreads)
    ReduceShard(const __grid_constant__ DenseTask task) {
  __shared__ DenseScratch scratch;
  const auto thread = static_cast<int>(threadIdx.x);
  SumWarps(task, blockIdx.x, thread, scratch);
  __syncthreads();
  StorePart(task, blockIdx.x, thread, scratch);
}

__global__ void __launch_bounds__(kDenseThreads)
    FinishShards(const __grid_constant__ DenseTask task) {
  __shared__ DenseScratch scratch;
  Finish(MergedShards(), task, blockIdx.x, static_cast<int>(threadIdx.x), scratch);
}

}  // namespace

cudaError_t LaunchDense(DenseStep step, const DenseTask& task, cudaStream_t stream) {
  if (task.positions == 0) return cudaSuccess;
  const auto kernel = step == DenseStep::kReduceLogits  ? ReduceLogits
                      : step == DenseStep::kReduceShard ? ReduceShard
                                                        : FinishShards;
  kernel<<<task.positions, kDenseThreads, 0, stream>>>(task);
  return cudaGetLastError();
}

}  // namespace sis::cuda
