// Statistics of positions that were decided together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/decide/backend.h"
#include "kernels/decide/statistics.h"
#include "server/cache/ages.h"
#include "server/cache/evaluated.h"
#include "server/cache/missing.h"
#include "server/evaluate/evaluate_input.h"
#include "server/evaluate/evaluate_output.h"

namespace sis {

// Result of a range of a slice's positions.
struct RangeResult {
  // All counts except the curve and the observed corrections, which are below.
  Evaluated counted;
  std::vector<Missing> missing;
  std::vector<PrefixSums> prefix_sums;  // one per point of the curve
  // One per entry of EvaluateInput::observe, of positions that a sequence mask keeps. The sums of
  // GSPO and of products and plain ratios under a sequence mask come from the whole slice, and stay
  // 0 here.
  std::vector<CorrectionSums> observed;
  // The sum of log w, in units of Fixed; 0 unless there is a sequence mask.
  int64_t log_ratio_sum = 0;
  ScoredPositions scored;  // empty unless GSPO or a product of w is observed
};

// Serves one call. Used by one thread at a time. `input` must outlive the object.
class PartStatistics {
 public:
  PartStatistics(const Backend& backend, const EvaluateInput& input);

  // Returns the output of a part of n positions. Arrays that are needed here, but not wanted by the
  // request, get memory of this object, valid until the next call.
  PositionOutput Complete(PositionOutput output, size_t n);

  // A part that was decided into an output of Complete.
  struct DecidedPart {
    size_t offset;  // of its first position in the request
    uint32_t first_position;
    std::span<const BackendRange> ranges;
    std::span<const size_t> ages;  // the class of each range; see AgeClassOf
    const Sums& sums;              // over all ranges
    std::span<const Sums, kAgeClasses.size()> sums_by_age;
    const PositionOutput& output;
  };
  absl::Status Add(const DecidedPart& part, RangeResult& into);

 private:
  // `applied` are the sums of the part's modified ratios.
  void AddByAge(const DecidedPart& part, const CorrectionSums& applied, SumsByAge& ages) const;
  // Adds the modified ratios of the range; only `weight` and `weight_squared` are right.
  void AddWeights(const DecidedPart& part, const BackendRange& range,
                  CorrectionSums& weights) const;
  absl::Status AddObserved(const DecidedPart& part, const DecidedPositions& positions,
                           RangeResult& into);
  bool DecidesAgain(const ObservedSis& sis) const;
  absl::Status AddSis(const ObservedSis& sis, const DecidedPart& part,
                      const DecidedPositions& positions, CorrectionSums& sums);
  // Adds the sums of `output` of the algorithm as weights.
  void AddAlgorithm(const Algorithm& algorithm, std::span<float> AlgorithmOutput::*output,
                    const DecidedPart& part, const DecidedPositions& positions,
                    CorrectionSums& sums);
  void AddScored(const DecidedPart& part, const DecidedPositions& positions,
                 ScoredPositions& scored);

  const Backend& backend_;
  const EvaluateInput& input_;
  // False if the modified ratio is 1 at accepted positions and w at others.
  const bool needs_modified_ratios_;
  const bool needs_total_variations_;
  std::vector<float> acceptance_probabilities_;
  std::vector<float> log_modified_ratios_;
  std::vector<float> modified_ratios_;
  std::vector<float> log_ratios_;
  std::vector<float> log_envelopes_;
  std::vector<float> covered_masses_;
  std::vector<float> total_variations_;
  // Memory for observed corrections.
  std::vector<BackendRange> ranges_;
  std::vector<Decision> decisions_;
  std::vector<float> observed_probabilities_;
  std::vector<float> observed_ratios_;
  std::vector<float> observed_log_ratios_;
  std::vector<float> reference_log_probs_;
  std::vector<float> importance_log_ratios_;
  std::vector<TokenState> states_;
};

}  // namespace sis
