// The REDUCED form of the current policy (docs/numerics.md, section 2) straight from logits, in one
// pass over them, for a whole vocabulary or for the shards of tensor parallelism
// (docs/dense_numerics.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "kernels/decide/validate.h"
#include "kernels/numerics/exp_sum.h"

namespace sis {

enum class LogitType : uint8_t { kFloat32, kFloat16, kBfloat16 };

constexpr size_t LogitBytes(LogitType type) { return type == LogitType::kFloat32 ? 4 : 2; }

// Logits of the current policy at T positions, for the ids [vocabulary_offset, vocabulary_offset +
// width). -inf is a token that can't be drawn; NaN and +inf are errors.
struct LogitsView {
  LogitType type;
  const std::byte* data;  // of any alignment
  int32_t width;
  int32_t vocabulary_offset = 0;
  ptrdiff_t row_stride_bytes;  // from one position to the next

  const std::byte* row(size_t position) const {
    return data + static_cast<ptrdiff_t>(position) * row_stride_bytes;
  }
};

// The recorded sets of the same T positions; valid by ValidateRecords (kernels/decide/validate.h).
struct DenseRecordView {
  std::span<const int32_t> sampled_ids;  // [T]
  std::span<const int32_t> ids;          // [T, K], -1 in unused slots
  std::span<const float> log_probs;      // [T, K], of the behaviour policy
};

// K, and the slots that count for envelope and mass: k in [1, K].
struct DenseParameters {
  int slots;
  int top_k;
  uint32_t first_position = 0;  // for error messages
};

// Where results go, [T] each, in nats but for the masses. The log-sum-exps may be left empty.
struct DenseOutput {
  std::span<float> sampled_log_probs;  // log p(y)
  std::span<float> log_envelopes;      // log M
  std::span<float> covered_masses;     // sum of p over the first k slots
  std::span<double> log_sum_exps = {};
};

// What one shard, or several merged, know of T positions. The memory is the caller's.
struct DensePartial {
  int32_t width = 0;                // the columns that went in, of each position
  std::span<ExpSum> exp_sums;       // [T]
  std::span<float> slot_logits;     // [T, K], -inf where unused or in no shard yet
  std::span<float> sampled_logits;  // [T]
};

// All are thread-safe and allocate nothing but error messages; lengths must agree. Split the
// positions to use more threads. InvalidArgument names position and vocabulary id; results of other
// positions may have been written then.

// The whole vocabulary at once (vocabulary_offset 0). InvalidArgument for a logit of NaN or +inf,
// and for a position with none above -inf.
absl::Status ReduceLogits(const LogitsView& logits, const DenseRecordView& records,
                          const DenseParameters& parameters, const DenseOutput& output);

// Where the GATHERED form of the same positions goes: log p at every slot, -inf where unused.
struct GatherOutput {
  std::span<float> sampled_log_probs;  // [T]
  std::span<float> log_probs;          // [T, K]
};

// The same bytes as log-probs of gathered logits with this log-sum-exp have. `ids` are [T, K];
// errors are those of ReduceLogits.
absl::Status GatherLogits(const LogitsView& logits, std::span<const int32_t> sampled_ids,
                          std::span<const int32_t> ids, int slots, uint32_t first_position,
                          const GatherOutput& output);

// One shard's part; what `partial` held before is overwritten. InvalidArgument for a logit of NaN
// or +inf.
absl::Status ReduceShard(const LogitsView& logits, const DenseRecordView& records,
                         const DenseParameters& parameters, DensePartial& partial);

// Adds another shard's part to `into`. Shards may be merged in any order and grouping: the bits are
// the same.
void MergeShard(const DensePartial& from, DensePartial& into);

// The results of all shards merged. InvalidArgument if their columns are not vocabulary_size in
// number, and for a position with no logit above -inf.
absl::Status FinishShards(const DensePartial& partial, int32_t vocabulary_size,
                          const DenseRecordView& records, const DenseParameters& parameters,
                          const DenseOutput& output);

}  // namespace sis
