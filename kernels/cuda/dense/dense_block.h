// What the threads of one block do with the logits of one position: docs/dense_numerics.md,
// sections 2 to 5, on host and device. One warp sums one block of the vocabulary at a time; a lane
// keeps two of the block's 64 running sums. Its logits stay in registers between the search for the
// largest and the sum, so that each is read once. Only the two reductions over a warp are the
// device's own (dense_kernel.cu); tests on a CPU do them by the book.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/cuda/evaluate/float16.h"
#include "kernels/cuda/evaluate/tuning.h"
#include "kernels/decide/decide.h"
#include "kernels/decide/dense/dense.h"
#include "kernels/numerics/exp_sum.h"
#include "kernels/numerics/host_device.h"

namespace sis::cuda {

inline constexpr int kDenseWarpThreads = 32;
inline constexpr int kDenseThreads = kDenseWarps * kDenseWarpThreads;

// What one shard knows of T positions, as DensePartial.
struct DensePart {
  ExpSum* exp_sums;       // [T]
  float* slot_logits;     // [T, K]
  float* sampled_logits;  // [T]
};

// All pointers are the device's, and aligned to their elements.
struct DenseTask {
  DenseParameters parameters;
  // Logits as in LogitsView.
  LogitType type;
  const std::byte* logits;
  int32_t width;
  int32_t vocabulary_offset;
  ptrdiff_t row_stride_bytes;
  // Records, as DenseRecordView.
  const int32_t* sampled_ids;
  const int32_t* ids;
  const float* log_probs;
  // The part of a shard: where it goes, or the first of those that are to be finished. Shard s of
  // T positions follows shard s - 1 in each array, as an all-gather leaves them.
  DensePart part;
  int shards;
  uint32_t positions;
  // Results, as DenseOutput; log_sum_exps may be null.
  float* sampled_log_probs;
  float* log_envelopes;
  float* covered_masses;
  double* log_sum_exps;
  // The least error number of all, from DenseError; kNoDenseError before.
  unsigned long long* first_error;
};

// What a kernel computes: the functions of kernels/decide/dense/dense.h, MergeShard and
// FinishShards in one.
enum class DenseStep { kReduceLogits, kReduceShard, kFinishShards };

inline constexpr unsigned long long kNoDenseError = ~0ull;

// Errors are ordered by position, then by id; the id is -1 if all logits are -inf.
SIS_HOST_DEVICE inline unsigned long long DenseError(uint32_t position, int32_t id) {
  return static_cast<unsigned long long>(position) << 32 | static_cast<uint32_t>(id);
}

// Shared memory of a block.
struct DenseScratch {
  ExpSum warp_sums[kDenseWarps];
  double log_sum_exp;
  float slot_log_probs[kMaxTopK];
};

SIS_HOST_DEVICE inline float DenseLogit(const DenseTask& task, uint32_t position, int32_t column) {
  const std::byte* row = task.logits + static_cast<ptrdiff_t>(position) * task.row_stride_bytes;
  if (task.type == LogitType::kFloat32) return reinterpret_cast<const float*>(row)[column];
  const uint16_t half = reinterpret_cast<const uint16_t*>(row)[column];
  return task.type == LogitType::kFloat16 ? Float16Value(half)
                                          : std::bit_cast<float>(static_cast<uint32_t>(half) << 16);
}

// -inf for an id that lies in another shard, or is -1.
SIS_HOST_DEVICE inline float DenseLogitOfId(const DenseTask& task, uint32_t position, int32_t id) {
  const int64_t column = int64_t{id} - task.vocabulary_offset;
  if (column < 0 || column >= task.width) return kMinusInfinity;
  return DenseLogit(task, position, static_cast<int32_t>(column));
}

// The blocks of the vocabulary that the logits touch: [first, end).
SIS_HOST_DEVICE inline int32_t FirstBlock(const DenseTask& task) {
  return task.vocabulary_offset / kVocabularyBlock;
}
SIS_HOST_DEVICE inline int32_t EndBlock(const DenseTask& task) {
  return (task.vocabulary_offset + task.width + kVocabularyBlock - 1) / kVocabularyBlock;
}

// A lane's logits of a block, those of running sum `lane` and of `lane` + 32 in turn, each by
// ascending id; -inf where there is no column.
struct LaneLogits {
  static constexpr int kCount = kVocabularyBlock / kDenseWarpThreads;
  float logit[kCount];
};

// A bad logit is reported by report(DenseError) and counts as -inf.
template <class Report>
SIS_HOST_DEVICE LaneLogits LoadLane(const DenseTask& task, uint32_t position, int32_t block,
                                    int lane, const Report& report) {
  LaneLogits logits;
  const int32_t first = block * kVocabularyBlock - task.vocabulary_offset + lane;
  for (int i = 0; i < LaneLogits::kCount; ++i) {
    const int32_t column = first + i * kDenseWarpThreads;
    float logit = kMinusInfinity;
    if (column >= 0 && column < task.width) {
      logit = DenseLogit(task, position, column);
      if (!(logit < std::numeric_limits<float>::infinity())) {
        report(DenseError(position, task.vocabulary_offset + column));
        logit = kMinusInfinity;
      }
    }
    logits.logit[i] = logit;
  }
  return logits;
}

SIS_HOST_DEVICE inline float LaneMaximum(const LaneLogits& logits) {
  float maximum = kMinusInfinity;
  for (int i = 0; i < LaneLogits::kCount; ++i) {
    maximum = logits.logit[i] > maximum ? logits.logit[i] : maximum;
  }
  return maximum;
}

// a[lane] + a[lane + 32] of section 2: the first step of the tree.
SIS_HOST_DEVICE inline float LaneSum(const LaneLogits& logits, float reference) {
  float low = 0.0f;
  float high = 0.0f;
  for (int i = 0; i < LaneLogits::kCount; i += 2) {
    low = low + Exp32(logits.logit[i] - reference);
    high = high + Exp32(logits.logit[i + 1] - reference);
  }
  return low + high;
}

// After the warps' sums: those of the position. For one thread.
SIS_HOST_DEVICE inline ExpSum MergedWarps(const DenseScratch& scratch) {
  ExpSum sum;
  for (int warp = 0; warp < kDenseWarps; ++warp) sum.Merge(scratch.warp_sums[warp]);
  return sum;
}

// A shard's part of a position.
SIS_HOST_DEVICE inline void StorePart(const DenseTask& task, uint32_t position, int thread,
                                      const DenseScratch& scratch) {
  const size_t slots = task.parameters.slots;
  if (thread == 0) {
    task.part.exp_sums[position] = MergedWarps(scratch);
    task.part.sampled_logits[position] = DenseLogitOfId(task, position, task.sampled_ids[position]);
  }
  for (size_t slot = position * slots + thread; slot < (position + 1) * slots;
       slot += kDenseThreads) {
    task.part.slot_logits[slot] = DenseLogitOfId(task, position, task.ids[slot]);
  }
}

// Logits of tokens: from the whole row, or from the shard that has them.
class WholeRow {
 public:
  SIS_HOST_DEVICE ExpSum Sum(const DenseTask&, uint32_t, const DenseScratch& scratch) const {
    return MergedWarps(scratch);
  }
  SIS_HOST_DEVICE float Slot(const DenseTask& task, uint32_t position, int slot) const {
    return DenseLogitOfId(
        task, position,
        task.ids[size_t{position} * task.parameters.slots + static_cast<size_t>(slot)]);
  }
  SIS_HOST_DEVICE float Sampled(const DenseTask& task, uint32_t position) const {
    return DenseLogitOfId(task, position, task.sampled_ids[position]);
  }
};

class MergedShards {
 public:
  SIS_HOST_DEVICE ExpSum Sum(const DenseTask& task, uint32_t position, const DenseScratch&) const {
    ExpSum sum;
    for (int shard = 0; shard < task.shards; ++shard) {
      sum.Merge(task.part.exp_sums[size_t(shard) * task.positions + position]);
    }
    return sum;
  }
  SIS_HOST_DEVICE float Slot(const DenseTask& task, uint32_t position, int slot) const {
    const size_t slots = task.parameters.slots;
    return Largest(task.part.slot_logits, task, task.positions * slots,
                   position * slots + static_cast<size_t>(slot));
  }
  SIS_HOST_DEVICE float Sampled(const DenseTask& task, uint32_t position) const {
    return Largest(task.part.sampled_logits, task, task.positions, position);
  }

 private:
  // An id lies in one shard at most, so the maximum selects it.
  SIS_HOST_DEVICE static float Largest(const float* logits, const DenseTask& task, size_t stride,
                                       size_t index) {
    float largest = kMinusInfinity;
    for (int shard = 0; shard < task.shards; ++shard) {
      const float logit = logits[size_t(shard) * stride + index];
      largest = logit > largest ? logit : largest;
    }
    return largest;
  }
};

// Whether FinishSum found no logit above -inf: then there are no results.
SIS_HOST_DEVICE inline bool HasNoLogit(const DenseScratch& scratch) {
  return scratch.log_sum_exp == -std::numeric_limits<double>::infinity();
}

// The log-sum-exp. For one thread; all wait for it.
template <class Source, class Report>
SIS_HOST_DEVICE void FinishSum(const Source& source, const DenseTask& task, uint32_t position,
                               DenseScratch& scratch, const Report& report) {
  scratch.log_sum_exp = LogSumExp(source.Sum(task, position, scratch));
  if (HasNoLogit(scratch)) report(DenseError(position, -1));
}

// The log-probs of the slots, one a thread.
template <class Source>
SIS_HOST_DEVICE void FinishSlots(const Source& source, const DenseTask& task, uint32_t position,
                                 int thread, DenseScratch& scratch) {
  if (HasNoLogit(scratch)) return;
  for (int slot = thread; slot < task.parameters.top_k; slot += kDenseThreads) {
    scratch.slot_log_probs[slot] =
        LogProbOfLogit(source.Slot(task, position, slot), scratch.log_sum_exp);
  }
}

// Envelope and mass, which are added in the order of the slots. For one thread, after all slots.
template <class Source>
SIS_HOST_DEVICE void FinishPosition(const Source& source, const DenseTask& task, uint32_t position,
                                    const DenseScratch& scratch) {
  if (HasNoLogit(scratch)) return;
  const float* log_probs = task.log_probs + size_t{position} * task.parameters.slots;
  EnvelopeAccumulator accumulator;
  for (int slot = 0; slot < task.parameters.top_k; ++slot) {
    accumulator.Add(log_probs[slot], scratch.slot_log_probs[slot]);
  }
  const Envelope envelope = accumulator.Finish();
  task.sampled_log_probs[position] =
      LogProbOfLogit(source.Sampled(task, position), scratch.log_sum_exp);
  task.log_envelopes[position] = envelope.log_envelope;
  task.covered_masses[position] = envelope.covered_mass;
  if (task.log_sum_exps != nullptr) task.log_sum_exps[position] = scratch.log_sum_exp;
}

}  // namespace sis::cuda
