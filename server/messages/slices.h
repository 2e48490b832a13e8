// Parses the slices of a request: ranges of positions of sequences.
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
  // Set by comparing `expected_digest` with the records. Records of older versions were already
  // stale when the trainer fetched.
  uint64_t oldest_fetched_version = 0;
  // True if some records are corrupt, so that the digest can't confirm the others.
  bool unreadable = false;
  std::optional<LogRatioSum> sequence_log_ratio_sum;

  Sequence* sequence() const {
    const auto* held = std::get_if<std::shared_ptr<Sequence>>(&found);
    return held == nullptr ? nullptr : held->get();
  }
};

using SliceMessages = google::protobuf::RepeatedPtrField<v1::Slice>;

// Returns InvalidArgument unless the id has 1 to 256 bytes.
absl::Status CheckSequenceId(std::string_view id);
absl::StatusOr<SequenceName> ParseSequence(const v1::SequenceRef& ref);

// Parses the slices of a FetchTopK. Length 0 means up to the seal or, without a seal, the committed
// length. Slices may be empty.
absl::StatusOr<std::vector<SliceRange>> ParseFetchSlices(Run& run, const SliceMessages& slices);
// Parses the slices of an Evaluate. Returns InvalidArgument if one is empty or two overlap.
absl::StatusOr<std::vector<SliceRange>> ParseEvaluateSlices(Run& run, const SliceMessages& slices);

// Keeps the sequences of the slices (FetchTopKRequest.keep_seconds). Returns InvalidArgument unless
// the time is in [0, kMaxKeepSeconds].
absl::Status KeepSequences(Run& run, const std::vector<SliceRange>& slices, double keep_seconds);

// Returns the number of positions in all slices.
int64_t TotalPositions(const std::vector<SliceRange>& slices);

// Adds missing ranges of the slice with this index to a response.
void AddMissingRanges(size_t slice, const std::vector<Missing>& missing,
                      google::protobuf::RepeatedPtrField<v1::MissingRange>& ranges);

// Returns why these positions have no usable record, or nullopt if they have one.
std::optional<MissingReason> ReasonMissing(const Sequence::Reader::Piece& piece,
                                           uint64_t oldest_fresh_version);

}  // namespace sis
