#include "server/evaluate/current_arrays.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "server/messages/arrays.h"

namespace sis {

absl::StatusOr<CurrentArrays> CurrentArrays::Parse(const v1::EvaluateRequest& request, size_t count,
                                                   const RunConfig& config) {
  CurrentArrays current;
  current.slots_ = config.top_k;
  absl::Status status;
  switch (request.form_case()) {
    case v1::EvaluateRequest::kGathered:
      status = current.ParseGathered(request.gathered(), count);
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
  if (reduced()) return 3;
  return counts_.empty() ? 1 + slots_ : 2 + all_values_ / counts_.size();
}

absl::StatusOr<CurrentView> CurrentArrays::Read(const BlockRange& behavior, size_t first,
                                                uint32_t first_position,
                                                std::span<float> compacted) const {
  const size_t count = behavior.size();
  CurrentView view{.sampled_log_probs = sampled_log_probs_.subspan(first, count),
                   .log_probs = {},
                   .log_envelopes = {},
                   .covered_masses = {}};
  if (reduced()) {
    view.log_envelopes = log_envelopes_.subspan(first, count);
    view.covered_masses = covered_masses_.subspan(first, count);
  } else if (padded()) {
    auto end = compacted.begin();
    for (size_t i = 0; i < count; ++i) {
      end = std::copy_n(log_probs_.begin() + (first + i) * slots_, behavior.counts[i], end);
    }
    view.log_probs = {compacted.begin(), end};
  } else {
    const auto counts = counts_.subspan(first, count);
    const auto wrong = std::ranges::mismatch(counts, behavior.counts);
    if (wrong.in1 != counts.end()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "gathered.top_k_counts: position ", first_position + (wrong.in1 - counts.begin()), ": ",
          *wrong.in1, ", but the record has ", *wrong.in2, " slots"));
    }
    view.log_probs = log_probs_.subspan(Begin(first), behavior.used_slots);
  }
  return view;
}

size_t CurrentArrays::Begin(size_t position) const {
  const size_t known = position / kPositionsPerBegin;
  const auto between = counts_.subspan(known * kPositionsPerBegin, position % kPositionsPerBegin);
  return std::accumulate(between.begin(), between.end(), size_t{begins_[known]});
}

absl::Status CurrentArrays::ParseGathered(const v1::Gathered& gathered, size_t count) {
  absl::Status status = ParseCounts(gathered, count);
  if (!status.ok()) return status;
  status = ViewArray("gathered.log_probs", gathered.log_probs(),
                     counts_.empty() ? count * slots_ : all_values_, log_probs_);
  status.Update(ViewArray("gathered.sampled_log_probs", gathered.sampled_log_probs(), count,
                          sampled_log_probs_));
  return status;
}

absl::Status CurrentArrays::ParseCounts(const v1::Gathered& gathered, size_t count) {
  if (gathered.top_k_counts().empty()) return absl::OkStatus();
  absl::Status status = ViewArray("gathered.top_k_counts", gathered.top_k_counts(), count, counts_);
  if (!status.ok()) return status;
  for (size_t i = 0; i < count; ++i) {
    if (counts_[i] > slots_) {
      return absl::InvalidArgumentError(absl::StrCat("gathered.top_k_counts: element ", i, ": ",
                                                     counts_[i], ", above the run's top_k ",
                                                     slots_));
    }
    if (i % kPositionsPerBegin == 0) begins_.push_back(all_values_);
    all_values_ += counts_[i];
  }
  return absl::OkStatus();
}

}  // namespace sis
