#include "server/evaluate/current_arrays.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "server/messages/arrays.h"

namespace sis {

absl::StatusOr<CurrentArrays> CurrentArrays::Parse(const v1::EvaluateRequest& request, size_t count,
                                                   const RunConfig& config) {
  CurrentArrays current;
  absl::Status status;
  switch (request.form_case()) {
    case v1::EvaluateRequest::kGathered:
      status = current.ParseGathered(request.gathered(), count, config.top_k);
      break;
    case v1::EvaluateRequest::kReduced: {
      const v1::Reduced& reduced = request.reduced();
      status = ViewArray("reduced.sampled_log_probs", reduced.sampled_log_probs(), count,
                         current.sampled_log_probs_);
      status.Update(ViewArray("reduced.log_envelopes", reduced.log_envelopes(), count,
                              current.log_envelopes_));
      status.Update(ViewArray("reduced.covered_masses", reduced.covered_masses(), count,
                              current.covered_masses_));
      break;
    }
    case v1::EvaluateRequest::FORM_NOT_SET:
      status = absl::InvalidArgumentError("form: none is set");
  }
  if (!status.ok()) return status;
  return current;
}

size_t CurrentArrays::values_per_position() const {
  return counts_.empty() ? 3 : 2 + log_probs_.size() / counts_.size();
}

absl::StatusOr<CurrentView> CurrentArrays::Read(const BlockRange& behavior, size_t first,
                                                uint32_t first_position) const {
  const size_t count = behavior.size();
  CurrentView view{.sampled_log_probs = sampled_log_probs_.subspan(first, count),
                   .log_probs = {},
                   .log_envelopes = {},
                   .covered_masses = {}};
  if (counts_.empty()) {
    view.log_envelopes = log_envelopes_.subspan(first, count);
    view.covered_masses = covered_masses_.subspan(first, count);
    return view;
  }
  const std::span<const uint8_t> counts = counts_.subspan(first, count);
  const auto wrong = std::ranges::mismatch(counts, behavior.counts);
  if (wrong.in1 != counts.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("gathered.counts: position ", first_position + (wrong.in1 - counts.begin()),
                     ": ", *wrong.in1, ", but the record has ", *wrong.in2, " slots"));
  }
  view.log_probs = log_probs_.subspan(Begin(first), behavior.used_slots);
  return view;
}

size_t CurrentArrays::Begin(size_t position) const {
  const size_t known = position / kPositionsPerBegin;
  const auto between = counts_.subspan(known * kPositionsPerBegin, position % kPositionsPerBegin);
  return std::accumulate(between.begin(), between.end(), size_t{begins_[known]});
}

absl::Status CurrentArrays::ParseGathered(const v1::Gathered& gathered, size_t count,
                                          uint32_t top_k) {
  absl::Status status = ViewArray("gathered.counts", gathered.counts(), count, counts_);
  if (!status.ok()) return status;
  uint64_t values = 0;
  for (size_t i = 0; i < count; ++i) {
    if (counts_[i] > top_k) {
      return absl::InvalidArgumentError(absl::StrCat(
          "gathered.counts: element ", i, ": ", counts_[i], ", above the run's top_k ", top_k));
    }
    if (i % kPositionsPerBegin == 0) begins_.push_back(values);
    values += counts_[i];
  }
  status = ViewArray("gathered.log_probs", gathered.log_probs(), values, log_probs_);
  status.Update(ViewArray("gathered.sampled_log_probs", gathered.sampled_log_probs(), count,
                          sampled_log_probs_));
  return status;
}

}  // namespace sis
