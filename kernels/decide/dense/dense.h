// The current policy's log-probs at recorded tokens, from its logits of the whole vocabulary
// (docs/dense_numerics.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"

namespace sis {

enum class LogitType : uint8_t { kFloat32, kBfloat16 };

constexpr size_t LogitBytes(LogitType type) { return type == LogitType::kFloat32 ? 4 : 2; }

// The logits of one position. -inf is a token that can't be drawn; NaN and +inf are errors.
struct LogitRow {
  LogitType type;
  const std::byte* data;  // of any alignment
  int32_t vocabulary_size;
};

// Doubles of this magnitude are 2^-12 apart: what is subtracted from them are log-probs whose
// probabilities sum to 1 within a thousandth.
constexpr double kMaxLogSumExp = 0x1p40;

// The log-sum-exp of a position's logits. InvalidArgument names position and vocabulary id of a
// logit that is NaN or +inf; it is also given if all are -inf, and above kMaxLogSumExp.
absl::StatusOr<double> LogSumExpOfRow(const LogitRow& row, uint32_t position);

// log p of each id, into log_probs of the same length; -inf for ids outside of the vocabulary, such
// as the -1 of unused slots. These are the bytes of the same logits when they are sent gathered,
// with this log-sum-exp.
void GatherLogProbs(const LogitRow& row, double log_sum_exp, std::span<const int32_t> ids,
                    std::span<float> log_probs);

}  // namespace sis
