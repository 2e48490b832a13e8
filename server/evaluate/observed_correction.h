// The corrections that a request wants watched besides its own.
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

// The weight that a request names: WEIGHT_SAMPLED where it names none.
inline v1::Weight WeightOf(v1::Weight named) {
  return named == v1::WEIGHT_UNSPECIFIED ? v1::WEIGHT_SAMPLED : named;
}

// The modified ratio with other settings.
struct ObservedSis {
  int top_k;  // in [1, the request's]
  v1::Weight weight;
};

// w at every position of a slice whose geometric mean of w lies within the bounds, else 0.
struct SequenceMask {
  double lower;
  double upper;

  // What it makes of positions of a slice, from what w adds there. The log-ratios of the whole
  // slice sum up to log_ratio_sum, in units of Fixed, over `scored` positions.
  CorrectionSums Apply(const CorrectionSums& plain, int64_t log_ratio_sum, int64_t scored) const;
};

// The scored positions of a slice, or of a part of it, for a correction that needs the whole slice
// before it can weigh any of them.
struct ScoredPositions {
  std::vector<float> log_ratios;  // [n], log w
  // [n], log current - log proximal with three policies; with two it is log w, and this is empty.
  std::vector<float> policy_log_ratios;
  std::vector<float> advantages;  // [n]
};

// Of what GSPO takes the mean over a sequence.
LogRatioSum SumOfPolicyLogRatios(const ScoredPositions& positions);
// What GSPO makes of them, where `slice` is the sum over the whole slice.
CorrectionSums SumsOfGspo(const Gspo& gspo, const ScoredPositions& positions,
                          const LogRatioSum& slice);

struct ObservedCorrection {
  using Correction = std::variant<ObservedSis, Algorithm, SequenceMask>;

  RunCounters::ObservedName name;
  Correction correction;
};

// Null if it is another correction.
const Gspo* ObservedGspo(const ObservedCorrection::Correction& correction);

// What they go with in the request.
struct ObservingRequest {
  int top_k;
  bool has_every_slot;  // whether a smaller k can be evaluated
  bool has_advantages;
  bool three_policies;
};

// InvalidArgument names the correction and the field.
absl::StatusOr<std::vector<ObservedCorrection>> ParseObserved(const v1::EvaluateRequest& request,
                                                              const ObservingRequest& with);

}  // namespace sis
