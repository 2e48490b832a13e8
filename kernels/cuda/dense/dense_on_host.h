// The dense kernel on the host, thread by thread, with the reductions over a warp by the book. For
// tests.
#pragma once

#include <algorithm>

#include "kernels/cuda/dense/dense_block.h"

namespace sis::cuda {

// The tree of docs/dense_numerics.md, section 2, after its first step.
inline float WarpSumOnHost(float (&sums)[kDenseWarpThreads]) {
  for (int half = kDenseWarpThreads / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sums[i] = sums[i] + sums[i + half];
  }
  return sums[0];
}

template <class Source, class Report>
void FinishOnHost(const Source& source, const DenseTask& task, uint32_t position,
                  DenseScratch& scratch, const Report& report) {
  FinishSum(source, task, position, scratch, report);
  for (int thread = 0; thread < kDenseThreads; ++thread) {
    FinishSlots(source, task, position, thread, scratch);
  }
  FinishPosition(source, task, position, scratch);
}

inline void RunDenseOnHost(DenseStep step, const DenseTask& task) {
  const auto report = [&task](unsigned long long error) {
    *task.first_error = std::min(*task.first_error, error);
  };
  for (uint32_t position = 0; position < task.positions; ++position) {
    DenseScratch scratch;
    if (step == DenseStep::kFinishShards) {
      FinishOnHost(MergedShards(), task, position, scratch, report);
      continue;
    }
    for (int32_t block = FirstBlock(task); block < EndBlock(task); ++block) {
      LaneLogits lanes[kDenseWarpThreads];
      float maximum = kMinusInfinity;
      for (int lane = 0; lane < kDenseWarpThreads; ++lane) {
        lanes[lane] = LoadLane(task, position, block, lane, report);
        maximum = std::max(maximum, LaneMaximum(lanes[lane]));
      }
      if (maximum == kMinusInfinity) continue;
      const float reference = BlockReference(maximum);
      float sums[kDenseWarpThreads];
      for (int lane = 0; lane < kDenseWarpThreads; ++lane) {
        sums[lane] = LaneSum(lanes[lane], reference);
      }
      scratch.warp_sums[(block - FirstBlock(task)) % kDenseWarps].AddBlock(reference,
                                                                           WarpSumOnHost(sums));
    }
    if (step == DenseStep::kReduceLogits) {
      FinishOnHost(WholeRow(), task, position, scratch, report);
      continue;
    }
    for (int thread = 0; thread < kDenseThreads; ++thread) {
      StorePart(task, position, thread, scratch);
    }
  }
}

}  // namespace sis::cuda
