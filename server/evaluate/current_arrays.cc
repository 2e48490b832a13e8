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

CurrentView CurrentArrays::Read(size_t first, size_t count) const {
  CurrentView view{.sampled_log_probs = sampled_log_probs_.subspan(first, count),
                   .log_probs = {},
                   .log_envelopes = {},
                   .covered_masses = {}};
  if (!log_envelopes_.empty()) {
    view.log_envelopes = log_envelopes_.subspan(first, count);
    view.covered_masses = covered_masses_.subspan(first, count);
  } else if (ragged()) {
    view.counts = Counts(first, count);
    const size_t values = std::accumulate(view.counts.begin(), view.counts.end(), size_t{0});
    view.log_probs = log_probs_.subspan(RaggedBegin(first), values);
  } else {
    view.log_probs = log_probs_.subspan(first * slots_, count * slots_);
  }
  return view;
}

size_t CurrentArrays::RaggedBegin(size_t position) const {
  const size_t known = position / kPositionsPerBegin;
  const auto between = Counts(known * kPositionsPerBegin, position - known * kPositionsPerBegin);
  return std::accumulate(between.begin(), between.end(), size_t{begins_[known]});
}

CurrentView CurrentArrays::Part(const CurrentView& view, size_t read_first, size_t first,
                                size_t count) const {
  const auto part = [&](auto array, size_t width) {
    return array.empty() ? array : array.subspan((first - read_first) * width, count * width);
  };
  CurrentView some{.sampled_log_probs = part(view.sampled_log_probs, 1),
                   .log_probs = {},
                   .log_envelopes = part(view.log_envelopes, 1),
                   .covered_masses = part(view.covered_masses, 1),
                   .counts = part(view.counts, 1)};
  if (ragged()) {
    const size_t values = std::accumulate(some.counts.begin(), some.counts.end(), size_t{0});
    some.log_probs = view.log_probs.subspan(RaggedBegin(first) - RaggedBegin(read_first), values);
  } else {
    some.log_probs = part(view.log_probs, slots_);
  }
  return some;
}

size_t CurrentArrays::values_per_position() const {
  return ragged() ? 1 + all_values_ / counts_.size() : slots_;
}

absl::Status CurrentArrays::ParseGathered(const v1::Gathered& gathered, size_t count) {
  absl::Status status = ParseCounts(gathered, count);
  if (!status.ok()) return status;
  status = ViewArray("gathered.log_probs", gathered.log_probs(),
                     ragged() ? all_values_ : count * slots_, log_probs_);
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
