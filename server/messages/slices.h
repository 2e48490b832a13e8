// Ranges of positions that a request names.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "kernels/decide/algorithms/algorithm_input.h"
#include "server/cache/run.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

struct SliceRange {
  SequenceName name;
  uint32_t first_position;
  uint32_t count;
  Run::Found found;
  std::optional<uint64_t> expected_digest;
  // What comparing it with the records' tells. Older versions were stale where they were fetched:
  uint64_t oldest_fetched_version = 0;
  // Some are corrupt, and whether the others are those that were fetched can't be told any more:
  bool unreadable = false;
  std::optional<LogRatioSum> sequence_log_ratio_sum;

  Sequence* sequence() const {
    const auto* held = std::get_if<std::shared_ptr<Sequence>>(&found);
    return held == nullptr ? nullptr : held->get();
  }
};

using SliceMessages = google::protobuf::RepeatedPtrField<v1::Slice>;

// InvalidArgument unless the id is 1 to 256 bytes.
absl::Status CheckSequenceId(std::string_view id);
absl::StatusOr<SequenceName> ParseSequence(const v1::SequenceRef& ref);

// The slices of a FetchTopK: length 0 reaches up to the seal, or what is committed; any may be
// empty.
absl::StatusOr<std::vector<SliceRange>> ParseFetchSlices(Run& run, const SliceMessages& slices);
// The slices of an Evaluate: none empty, none overlapping.
absl::StatusOr<std::vector<SliceRange>> ParseEvaluateSlices(Run& run, const SliceMessages& slices);

// Keeps the sequences of the slices (FetchTopKRequest.keep_seconds). InvalidArgument unless the
// time is in [0, kMaxKeepSeconds].
absl::Status KeepSequences(Run& run, const std::vector<SliceRange>& slices, double keep_seconds);

// Positions in all slices.
int64_t TotalPositions(const std::vector<SliceRange>& slices);

// Adds them to an answer, as of the slice with this index.
void AddMissingRanges(size_t slice, const std::vector<Missing>& missing,
                      google::protobuf::RepeatedPtrField<v1::MissingRange>& ranges);

// Why there is no record to use at these positions; nothing if there is.
std::optional<MissingReason> ReasonMissing(const Sequence::Reader::Piece& piece,
                                           uint64_t oldest_fresh_version);

}  // namespace sis
