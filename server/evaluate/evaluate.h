// Evaluate: from a request to decisions, ratios and sums.
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

// One Evaluate of the API, a group of slices at a time, so that several threads can share it, and
// it can be given up, or make way for others, in between. On an error nothing has changed, except
// that the sequences that were named count as used, and may be kept.
class EvaluateCall {
 public:
  // Checks the request. The backend, the request and its empty response must outlive the object. At
  // most `lanes` threads will evaluate at once.
  static absl::StatusOr<std::unique_ptr<EvaluateCall>> Start(std::shared_ptr<Run> run,
                                                             const Backend& backend,
                                                             const v1::EvaluateRequest& request,
                                                             v1::EvaluateResponse& response,
                                                             size_t lanes);

  size_t groups() const { return groups_.size(); }
  // How many values there are to read in a group.
  uint64_t values(size_t group) const;
  // Evaluates a group, each once. Threads that do so at once have a lane each. After an error the
  // object is of no more use.
  absl::Status EvaluateGroup(size_t group, size_t lane);
  // When all groups have been evaluated, by one thread: applies the base algorithm, counts what
  // this draw hasn't counted yet, and completes the response. Sequences to inspect are then pending
  // in the run's Inspection.
  absl::Status Finish();

 private:
  struct SliceResult {
    Sums sums;
    int64_t log_ratio_sum;         // see RangeResult
    LogRatioSum policy_log_ratio;  // see ScoredPositions
    std::vector<Missing> missing;
    std::unique_ptr<Inspection::Pending> inspected;  // null unless chosen
  };
  // Consecutive slices [first, end), whose positions begin at `offset` in the request. They are
  // counted together: what is counted is large beside a short slice.
  struct Group {
    size_t first;
    size_t end;
    size_t offset;
    size_t positions = 0;
    Evaluated counted = {};
  };
  // Unless a single slice has more.
  static constexpr size_t kGroupPositions = 1024;
  static constexpr size_t kGroupValues = size_t{1} << 18;

  EvaluateCall(std::shared_ptr<Run> run, const Backend& backend, EvaluateInput input,
               std::vector<SliceRange> slices, v1::EvaluateResponse& response, size_t lanes);

  void MakeGroups();
  // Positions of the slice that the mask leaves out; the slice begins at `offset` in the request.
  std::vector<StepLedger::Range> MaskedRanges(const SliceRange& slice, size_t offset) const;
  // Adds to the run's step and metrics what this draw hasn't counted yet; returns how many
  // positions that is.
  int64_t Count();
  // Room for the values of a slice that is chosen for a closer look; else null.
  std::unique_ptr<Inspection::Pending> RoomToInspect(const SliceRange& slice) const;
  // Adds what came of positions of slice number i, which has been evaluated.
  void Add(size_t i, const RangeResult& part, Evaluated& counted) const;
  // Evaluates positions of slice number i again; it begins at `offset` in the request.
  absl::StatusOr<RangeResult> EvaluateAgain(size_t i, const StepLedger::Range& range,
                                            size_t offset);
  void AddCorrections(const Evaluated& all);

  const std::shared_ptr<Run> run_;
  const EvaluateInput input_;
  std::vector<SliceRange> slices_;
  std::vector<SliceEvaluator> evaluators_;  // by lane
  v1::EvaluateResponse& response_;
  EvaluateOutput output_;             // into the response
  std::vector<SliceResult> results_;  // by slice
  std::vector<Group> groups_;
};

}  // namespace sis
