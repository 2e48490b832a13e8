// Evaluates ranges of a slice's positions against the cache.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/decide/backend.h"
#include "server/cache/inspected_positions.h"
#include "server/cache/inspection.h"
#include "server/cache/missing.h"
#include "server/cache/run.h"
#include "server/evaluate/evaluate_input.h"
#include "server/evaluate/evaluate_output.h"
#include "server/evaluate/part_statistics.h"
#include "server/messages/slices.h"

namespace sis {

// What a call goes by to its end, although the run moves on.
struct VersionsNow {
  explicit VersionsNow(const Run& run)
      : oldest_fresh(run.oldest_fresh_version()), policy(run.policy_version()) {}

  uint64_t oldest_fresh;
  uint64_t policy;
};

// For one call, by one thread at a time. `input` must outlive it.
class SliceEvaluator {
 public:
  SliceEvaluator(const VersionsNow& versions, const Backend& backend, const EvaluateInput& input)
      : backend_(backend), input_(input), versions_(versions), statistics_(backend, input) {}

  // Positions [first, first + count) of the slice's sequence, whose values stand at `offset` in the
  // request; output is theirs alone. What the slice's digest tells is noted in the slice. What
  // comes of the slice's first positions is kept in `inspected`, as many as it has, if it is not
  // null.
  absl::StatusOr<RangeResult> Evaluate(SliceRange& slice, uint32_t first, uint32_t count,
                                       size_t offset, const PositionOutput& output,
                                       InspectedPositions* inspected = nullptr);
  // What adds the records to such positions of a slice that has been evaluated: see
  // Inspection::Pending. The run must outlive it.
  std::function<bool(Inspection::Sequence&)> RecordsOf(Run& run, const SliceRange& slice,
                                                       uint64_t digest) const;

 private:
  // Consecutive positions of one slice, evaluated together.
  struct Part {
    const SliceRange& slice;
    uint32_t first;
    size_t offset;
    PositionOutput output;
    RangeResult& result;
  };

  // FailedPrecondition if the slice names a digest that its records have not had, however many of
  // them have gone since, or had by then where the run's version was ahead.
  absl::Status CompareWithFetched(SliceRange& slice, const Sequence::Reader& reader) const;
  std::optional<MissingReason> ReasonMissing(const SliceRange& slice,
                                             const Sequence::Reader::Piece& piece) const;
  // With room for what the request asks for.
  RangeResult NoneYet() const;
  // Before a part is put together of ranges.
  void ForgetRanges();
  // Calls visit(masked, first, count) for the runs of equal mask that cover the `count` positions
  // from `position` on; `first` counts from the first of the part.
  template <typename Visit>
  absl::Status ForEachMaskRange(const Part& part, uint32_t position, uint32_t count,
                                const Visit& visit) const;
  absl::Status AddMissingPositions(const Part& part, uint32_t position, uint32_t count,
                                   MissingReason reason);
  // The trainer's own ratio, where there is no record; first and count as for ForEachMaskRange.
  absl::Status AddOwnRatios(const Part& part, size_t first, size_t count);
  absl::Status AddPiece(const Part& part, const Sequence::Reader::Piece& piece);
  // Of the ranges that were added. InvalidArgument names the first value that is no log-prob.
  absl::Status CheckCurrentValues() const;
  // Evaluates them.
  absl::Status Decide(const Part& part);
  // Of the ranges that were decided.
  absl::Status AddStatistics(const Part& part);
  // Of them, too. `positions` are the slice's first; a range begins at `row` of them.
  void Keep(const Part& part, InspectedPositions& positions) const;
  void KeepRange(const BackendRange& range, size_t row, InspectedPositions& positions) const;

  const Backend& backend_;
  const EvaluateInput& input_;
  const VersionsNow versions_;
  // Of the part at hand: its ranges, the class of staleness of each, and the sums of all.
  std::vector<BackendRange> ranges_;
  std::vector<size_t> staleness_;
  Sums decided_;
  PartStatistics statistics_;
};

}  // namespace sis
