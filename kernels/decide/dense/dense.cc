#include "kernels/decide/dense/dense.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/decide/dense/dense_row.h"
#include "kernels/numerics/exp32.h"

namespace sis {
namespace {

absl::Status BadLogit(const LogitRow& row, uint32_t position) {
  for (int32_t id = 0; id < row.vocabulary_size; ++id) {
    const float logit = LogitAt(row, id);
    if (logit < std::numeric_limits<float>::infinity()) continue;
    return absl::InvalidArgumentError(absl::StrCat("logits at position ", position,
                                                   ", vocabulary id ", id, ": ", logit,
                                                   " is neither finite nor -inf"));
  }
  return absl::InternalError(absl::StrCat("logits at position ", position, " changed meanwhile"));
}

// The terms of the ids [begin, end) of one block.
float SumBlock(const LogitRow& row, int32_t begin, int32_t end, float reference) {
  constexpr int kRunningSums = 64;  // id mod 64 says which
  float sums[kRunningSums] = {};
  for (int32_t id = begin; id < end; ++id) {
    float& sum = sums[id % kRunningSums];
    sum = sum + Exp32(LogitAt(row, id) - reference);
  }
  for (int half = kRunningSums / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sums[i] = sums[i] + sums[i + half];
  }
  return sums[0];
}

}  // namespace

bool SumRowScalar(const LogitRow& row, ExpSum& sum) {
  sum = ExpSum();
  for (int32_t begin = 0; begin < row.vocabulary_size; begin += kVocabularyBlock) {
    const int32_t end = std::min(row.vocabulary_size, begin + kVocabularyBlock);
    float maximum = kMinusInfinity;
    for (int32_t id = begin; id < end; ++id) {
      const float logit = LogitAt(row, id);
      if (!(logit < std::numeric_limits<float>::infinity())) return false;
      maximum = std::max(maximum, logit);
    }
    if (maximum == kMinusInfinity) continue;
    const float reference = BlockReference(maximum);
    sum.AddBlock(reference, SumBlock(row, begin, end, reference));
  }
  return true;
}

absl::StatusOr<double> LogSumExpOfRow(const LogitRow& row, uint32_t position) {
  ExpSum sum;
  if (!SumRow(row, sum)) return BadLogit(row, position);
  const double log_sum_exp = LogSumExp(sum);
  if (std::isinf(log_sum_exp)) {
    return absl::InvalidArgumentError(
        absl::StrCat("logits at position ", position, ": all are -inf"));
  }
  if (std::abs(log_sum_exp) > kMaxLogSumExp) {
    return absl::InvalidArgumentError(
        absl::StrCat("logits at position ", position, ": the log-sum-exp ", log_sum_exp,
                     " is beyond 2^40 in magnitude, where log-probs are lost in rounding"));
  }
  return log_sum_exp;
}

void GatherLogProbs(const LogitRow& row, double log_sum_exp, std::span<const int32_t> ids,
                    std::span<float> log_probs) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool in_vocabulary = ids[i] >= 0 && ids[i] < row.vocabulary_size;
    log_probs[i] =
        LogProbOfLogit(in_vocabulary ? LogitAt(row, ids[i]) : kMinusInfinity, log_sum_exp);
  }
}

}  // namespace sis
