// Input and output of a base algorithm, as plain arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/decide/algorithms/token.h"
#include "kernels/numerics/exp32.h"
#include "kernels/numerics/sums.h"

namespace sis {

// The sum of the log-ratios of a sequence or of a part of it. Callers add parts in any order.
struct LogRatioSum {
  int64_t log_ratio = 0;  // in units of 2^-30 (kernels/numerics/sums.h)
  int64_t positions = 0;  // number of positions that are not masked

  LogRatioSum& operator+=(const LogRatioSum& other) { return AddEach(other, *this); }
  friend bool operator==(const LogRatioSum&, const LogRatioSum&) = default;
};

// Consecutive positions of one sequence. A sequence may have several parts.
struct SequenceRange {
  uint64_t sequence_key;
  uint32_t first_position;
  uint32_t count;
  // The sum over the whole sequence, if other machines have parts of it. Unset: this batch has the
  // whole sequence.
  std::optional<LogRatioSum> whole_sequence = {};
};

inline float AtOrZero(std::span<const float> array, size_t i) {
  return array.empty() ? 0.0f : array[i];
}

// N positions, part after part. Where an array's name ends in log_probs or log_ratios it is in
// nats; values may be -inf, never NaN. Masked positions may have any values.
struct AlgorithmInput {
  std::span<const SequenceRange> parts;
  std::span<const TokenState> states;  // [N]
  // Logarithm of the argument of g. Two policies: log w~, 0 where on-policy. Three: log current -
  // log proximal.
  std::span<const float> log_ratios;  // [N]
  // Three policies: log of the modified proximal / behaviour ratio, 0 where on-policy. Two: empty.
  std::span<const float> log_corrections = {};  // [N]
  // Read by DPPO and Clip-Cov: log p(y), and the log-prob under the policy in the ratio's
  // denominator, even where the ratio was modified.
  std::span<const float> current_log_probs = {};    // [N]
  std::span<const float> reference_log_probs = {};  // [N]
  std::span<const float> total_variations = {};     // [N]; read by DPPO's top-K variant, in [0, 1]
  // Read by soft acceptance and damped truncation, even where the ratio was modified: log current -
  // log behaviour, and the acceptance probability of the token, in [0, 1].
  std::span<const float> log_importance_ratios = {};     // [N]
  std::span<const float> acceptance_probabilities = {};  // [N]
  // Required for coefficients, and by Clip-Cov, soft acceptance and damped truncation. Finite.
  std::span<const float> advantages = {};  // [N]
  uint64_t draw = 0;                       // keys Clip-Cov's choice

  bool three_policies() const { return !log_corrections.empty(); }
  // Returns the factor that three policies multiply a weight with. Position i must not be masked.
  float Correction(size_t i) const { return three_policies() ? Exp32(log_corrections[i]) : 1.0f; }
};

// Arrays that are not wanted are empty.
struct AlgorithmOutput {
  std::span<float> surrogates = {};            // [N], g
  std::span<float> coefficients = {};          // [N], c
  std::span<LogRatioSum> log_ratio_sums = {};  // one per part; GSPO only

  void Store(size_t i, const Weights& weights) const {
    if (!surrogates.empty()) surrogates[i] = weights.surrogate;
    if (!coefficients.empty()) coefficients[i] = weights.coefficient;
  }
};

}  // namespace sis
