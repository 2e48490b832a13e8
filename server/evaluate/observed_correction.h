// Corrections that a request observes in addition to the one that it applies.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/decide/algorithms/algorithm.h"
#include "kernels/decide/statistics.h"
#include "server/cache/run_counters.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// Returns `named`, or the default, WEIGHT_SAMPLED.
inline v1::Weight WeightOf(v1::Weight named) {
  return named == v1::WEIGHT_UNSPECIFIED ? v1::WEIGHT_SAMPLED : named;
}

// The modified ratio with other settings.
struct ObservedSis {
  int top_k;  // in [1, the request's]
  v1::Weight weight;
};

// Weight 0 at every position of a slice unless the slice's geometric mean of w, or with
// SEQUENCE_WEIGHT_PRODUCT the product of w, is in [lower, upper].
struct SequenceMask {
  double lower;
  double upper;
  v1::ObservedCorrection::SequenceWeight weight;  // of positions in other slices; not unspecified

  // `log_ratio_sum` is the sum of log w over the `scored` positions of the slice, in units of
  // Fixed.
  bool Keeps(int64_t log_ratio_sum, int64_t scored) const;
};

// The surrogate of this rule: weight 0 where p(y) and q(y) are further apart, whatever the
// advantage.
struct TokenMask {
  DppoBinary rule;
};

// The n scored positions of a slice, or of a part of it. Kept for corrections whose weights depend
// on the whole slice: GSPO and the product of w.
struct ScoredPositions {
  std::vector<float> log_ratios;  // [n], log w
  // [n], log current - log proximal with three policies; with two it is log w, and this is empty.
  std::vector<float> policy_log_ratios;
  std::vector<float> advantages;  // [n]
};

// Returns the sum of the log-ratios whose mean over a sequence GSPO uses.
LogRatioSum SumOfPolicyLogRatios(const ScoredPositions& positions);
// Returns the sums of the positions, weighted by GSPO. `slice` is the sum over the whole slice.
CorrectionSums SumsOfGspo(const Gspo& gspo, const ScoredPositions& positions,
                          const LogRatioSum& slice);

// Returns the sums of the positions, each with the product of w over a slice as its weight.
// `log_ratio_sum` is the sum of log w over that slice, in units of Fixed.
CorrectionSums SumsOfProduct(const ScoredPositions& positions, int64_t log_ratio_sum);

struct ObservedCorrection {
  using Correction = std::variant<ObservedSis, Algorithm, SequenceMask, TokenMask>;

  RunCounters::ObservedName name;
  Correction correction;
};

// Returns the GSPO correction, or null if `correction` is another one.
const Gspo* ObservedGspo(const ObservedCorrection::Correction& correction);

// Properties of the request that limit the corrections that it can observe.
struct ObservingRequest {
  int top_k;
  bool has_every_slot;  // required to evaluate a smaller k
  bool has_advantages;
  bool three_policies;
};

// Returns InvalidArgument, naming the correction and the field, if one is not allowed.
absl::StatusOr<std::vector<ObservedCorrection>> ParseObserved(const v1::EvaluateRequest& request,
                                                              const ObservingRequest& with);

}  // namespace sis
