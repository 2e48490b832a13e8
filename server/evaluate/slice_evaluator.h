// Evaluates ranges of a slice's positions against the cache.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/decide/backend.h"
#include "server/cache/ages.h"
#include "server/cache/inspected_positions.h"
#include "server/cache/missing.h"
#include "server/cache/run.h"
#include "server/evaluate/evaluate_input.h"
#include "server/evaluate/evaluate_output.h"
#include "server/evaluate/part_statistics.h"
#include "server/messages/slices.h"

namespace sis {

// The run's versions when a call begins. The call uses them to its end, while the run advances.
struct VersionsNow {
  explicit VersionsNow(const Run& run)
      : oldest_fresh(run.oldest_fresh_version()), policy(run.policy_version()) {}

  uint64_t oldest_fresh;
  uint64_t policy;
};

// Serves one call. Used by one thread at a time. `input` must outlive the object.
class SliceEvaluator {
 public:
  SliceEvaluator(const VersionsNow& versions, const Backend& backend, const EvaluateInput& input)
      : backend_(backend), input_(input), versions_(versions), statistics_(backend, input) {}

  // Evaluates positions [first, first + count) of the slice's sequence, whose values begin at
  // `offset` in the request. `output` has exactly these positions. Compares the slice's digest with
  // the records, and sets `slice.oldest_fetched_version` or `slice.unreadable`. If `inspected` is
  // not null, it has these positions, and gets their results and records.
  absl::StatusOr<RangeResult> Evaluate(SliceRange& slice, uint32_t first, uint32_t count,
                                       size_t offset, const PositionOutput& output,
                                       InspectedPositions* inspected = nullptr);

 private:
  // Consecutive positions of one slice, evaluated together.
  struct Part {
    const SliceRange& slice;
    uint32_t first;
    size_t offset;
    PositionOutput output;
    RangeResult& result;
  };

  // Returns FailedPrecondition if the records never had the digest that the slice names. Records
  // that were evicted, or became stale, since they were fetched don't matter.
  absl::Status CompareWithFetched(SliceRange& slice, const Sequence::Reader& reader) const;
  std::optional<MissingReason> ReasonMissing(const SliceRange& slice,
                                             const Sequence::Reader::Piece& piece) const;
  // Returns a result of no positions, with arrays of the sizes that the request needs.
  RangeResult NoneYet() const;
  void ForgetRanges();
  // Calls visit(masked, first, count) for each maximal range of equal mask among the `count`
  // positions from `position` on. `first` counts from the part's first position.
  template <typename Visit>
  absl::Status ForEachMaskRange(const Part& part, uint32_t position, uint32_t count,
                                const Visit& visit) const;
  absl::Status AddMissingPositions(const Part& part, uint32_t position, uint32_t count,
                                   MissingReason reason);
  // Adds the trainer's own ratios, for positions without a record. `first` counts from the part's
  // first position.
  absl::Status AddOwnRatios(const Part& part, size_t first, size_t count);
  absl::Status AddPiece(const Part& part, const Sequence::Reader::Piece& piece);
  // Checks the current values of `ranges_`. Returns InvalidArgument, naming the first value that is
  // not a log-prob.
  absl::Status CheckCurrentValues() const;
  // Evaluates `ranges_`.
  absl::Status Decide(const Part& part);
  absl::Status AddStatistics(const Part& part);
  // Copies results into `positions`, which begin at position `first`.
  void Keep(const Part& part, uint32_t first, InspectedPositions& positions) const;
  // Copies records there.
  void KeepRecords(const SliceRange& slice, const Sequence::Reader& reader, uint32_t first,
                   InspectedPositions& positions) const;

  const Backend& backend_;
  const EvaluateInput& input_;
  const VersionsNow versions_;
  // The current part: its ranges, the age class of each, and the sums of all and of each class.
  std::vector<BackendRange> ranges_;
  std::vector<size_t> ages_;
  Sums decided_;
  std::array<Sums, kAgeClasses.size()> decided_by_age_;
  PartStatistics statistics_;
};

}  // namespace sis
