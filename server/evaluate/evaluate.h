// Evaluate: turns a request into decisions, ratios and sums.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/decide/backend.h"
#include "server/cache/evaluated.h"
#include "server/cache/inspection.h"
#include "server/cache/run.h"
#include "server/evaluate/evaluate_input.h"
#include "server/evaluate/evaluate_output.h"
#include "server/evaluate/slice_evaluator.h"
#include "server/messages/slices.h"
#include "server/messages/step_message.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// One Evaluate call of the API. It runs group by group, so that several threads can share it and it
// can be paused or abandoned between groups. An error changes nothing, except that the named
// sequences count as used, and may be kept.
class EvaluateCall {
 public:
  // Checks the request. The backend, the request and its empty response must outlive the object. At
  // most `lanes` threads evaluate concurrently.
  static absl::StatusOr<std::unique_ptr<EvaluateCall>> Start(std::shared_ptr<Run> run,
                                                             const Backend& backend,
                                                             const v1::EvaluateRequest& request,
                                                             v1::EvaluateResponse& response,
                                                             size_t lanes);

  size_t groups() const { return groups_.size(); }
  // Returns the number of the request's values in a group, which measures its work.
  uint64_t values(size_t group) const;
  // Evaluates a group. Must be called once per group, and concurrent callers must use different
  // lanes. After an error the object can only be destroyed.
  absl::Status EvaluateGroup(size_t group, size_t lane);
  // Must be called once, after all groups. Applies the base algorithm, counts the positions that
  // this draw hasn't counted yet, completes the response, and records the values to inspect.
  absl::Status Finish();

 private:
  struct SliceResult {
    Sums sums;
    int64_t log_ratio_sum;         // see RangeResult
    LogRatioSum policy_log_ratio;  // see ScoredPositions
    std::vector<Missing> missing;
  };
  // Consecutive slices [first, end), whose positions begin at `offset` in the request. They share
  // `counted`, which is large compared with a short slice.
  struct Group {
    size_t first;
    size_t end;
    size_t offset;
    size_t positions = 0;
    Evaluated counted = {};
  };
  // Maximum size of a group of several slices.
  static constexpr size_t kGroupPositions = 1024;
  static constexpr size_t kGroupValues = size_t{1} << 18;

  EvaluateCall(std::shared_ptr<Run> run, const Backend& backend, EvaluateInput input,
               std::vector<SliceRange> slices, v1::EvaluateResponse& response, size_t lanes);

  void MakeGroups();
  // Returns the masked positions of the slice, which begins at `offset` in the request.
  std::vector<StepLedger::Range> MaskedRanges(const SliceRange& slice, size_t offset) const;
  // Adds the positions that this draw hasn't counted yet to the run's step and metrics. Returns
  // their number.
  int64_t Count();
  // Records the values of the few sequences that are chosen for inspection. Evaluates them again,
  // so that the other sequences cost nothing, and no call holds more values than one sequence has.
  void Inspect();
  // Adds the result of positions of slice number i to `counted`.
  void Add(size_t i, const RangeResult& part, Evaluated& counted) const;
  // Evaluates positions of slice number i again, with their values if `inspected` is not null. The
  // slice begins at `offset` in the request.
  absl::StatusOr<RangeResult> EvaluateAgain(size_t i, const StepLedger::Range& range, size_t offset,
                                            InspectedPositions* inspected = nullptr);
  void AddCorrections(const Evaluated& all);

  const std::shared_ptr<Run> run_;
  const EvaluateInput input_;
  std::vector<SliceRange> slices_;
  std::vector<SliceEvaluator> evaluators_;  // by lane
  v1::EvaluateResponse& response_;
  EvaluateOutput output_;             // writes to the response
  std::vector<SliceResult> results_;  // by slice
  std::vector<Group> groups_;
};

}  // namespace sis
