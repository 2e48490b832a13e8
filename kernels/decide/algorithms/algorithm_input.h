// The positions that a base algorithm is applied to: plain arrays in, plain arrays out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/decide/algorithms/token.h"
#include "kernels/numerics/exp32.h"
#include "kernels/numerics/sums.h"

namespace sis {

// The log-ratios of a sequence, or of a part of it: parts are added up by the caller, in any order.
struct LogRatioSum {
  int64_t log_ratio = 0;  // in units of 2^-30 (kernels/numerics/sums.h)
  int64_t positions = 0;  // those not masked

  LogRatioSum& operator+=(const LogRatioSum& other) { return AddEach(other, *this); }
  friend bool operator==(const LogRatioSum&, const LogRatioSum&) = default;
};

// Consecutive positions of one sequence. A sequence may have several parts.
struct SequenceRange {
  uint64_t sequence_key;
  uint32_t first_position;
  uint32_t count;
  // The sum over the whole sequence, where other machines hold the rest of it; unset: what this
  // batch holds is all.
  std::optional<LogRatioSum> whole_sequence = {};
};

inline float AtOrZero(std::span<const float> array, size_t i) {
  return array.empty() ? 0.0f : array[i];
}

// N positions, part after part. Where an array's name ends in log_probs or log_ratios it is in
// nats; values may be -inf, never NaN. Masked positions may hold anything.
struct AlgorithmInput {
  std::span<const SequenceRange> parts;
  std::span<const TokenState> states;  // [N]
  // Logarithm of the argument of g. Two policies: log w~, 0 where on-policy. Three: log current -
  // log proximal.
  std::span<const float> log_ratios;  // [N]
  // Three policies: log of the modified proximal / behaviour ratio, 0 where on-policy. Two: empty.
  std::span<const float> log_corrections = {};  // [N]
  // Read by DPPO and Clip-Cov: log p(y), and the log-prob under the policy that the ratio divides
  // by, also where the ratio was modified.
  std::span<const float> current_log_probs = {};    // [N]
  std::span<const float> reference_log_probs = {};  // [N]
  std::span<const float> total_variations = {};     // [N]; read by DPPO's top-K variant, in [0, 1]
  // Read by soft acceptance and damped truncation, also where the ratio was modified: log current -
  // log behaviour, and the probability that the token is accepted, in [0, 1].
  std::span<const float> log_importance_ratios = {};     // [N]
  std::span<const float> acceptance_probabilities = {};  // [N]
  // Needed for coefficients, by Clip-Cov, soft acceptance and damped truncation. Finite.
  std::span<const float> advantages = {};  // [N]
  uint64_t draw = 0;                       // keys Clip-Cov's choice

  bool three_policies() const { return !log_corrections.empty(); }
  // Returns the factor that three policies multiply a weight with. Position i must not be masked.
  float Correction(size_t i) const { return three_policies() ? Exp32(log_corrections[i]) : 1.0f; }
};

// Each may be empty: not wanted.
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
