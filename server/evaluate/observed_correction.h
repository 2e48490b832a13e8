// The corrections that a request wants watched besides its own.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/decide/algorithms/algorithm.h"
#include "kernels/decide/statistics.h"
#include "server/cache/run_counters.h"
#include "server/evaluate/weight_kind.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// The modified ratio with other settings.
struct ObservedSis {
  int top_k;  // in [1, the request's]
  WeightKind weight;
};

// w at every position of a slice whose geometric mean of w lies within the bounds, else 0.
struct SequenceMask {
  double lower;
  double upper;

  // What it makes of positions of a slice, from what w adds there. The log-ratios of the whole
  // slice sum up to log_ratio_sum, in units of Fixed, over `scored` positions.
  CorrectionSums Apply(const CorrectionSums& plain, int64_t log_ratio_sum, int64_t scored) const;
};

struct ObservedCorrection {
  RunCounters::ObservedName name;
  std::variant<ObservedSis, Algorithm, SequenceMask> correction;
};

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
