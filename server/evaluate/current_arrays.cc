#include "server/evaluate/current_arrays.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/wire/arrays.h"

namespace sis {
namespace {

// Where the field lies. InvalidArgument unless it has `count` elements.
template <typename T>
absl::Status Take(absl::string_view name, const std::string& field, const ReceivedArrays& arrays,
                  size_t count, ArrayField& into) {
  into = arrays.Of(field);
  return CheckLength<T>(name, into.size(), count);
}

}  // namespace

absl::StatusOr<CurrentArrays> CurrentArrays::Parse(const v1::EvaluateRequest& request,
                                                   const ReceivedArrays& arrays, size_t count,
                                                   const RunConfig& config) {
  CurrentArrays current;
  current.slots_ = config.top_k;
  absl::Status status;
  switch (request.form_case()) {
    case v1::EvaluateRequest::kGathered:
      status = current.ParseGathered(request.gathered(), arrays, count);
      break;
    case v1::EvaluateRequest::kReduced: {
      const v1::Reduced& reduced = request.reduced();
      status = Take<float>("reduced.sampled_log_probs", reduced.sampled_log_probs(), arrays, count,
                           current.sampled_log_probs_);
      status.Update(Take<float>("reduced.log_envelopes", reduced.log_envelopes(), arrays, count,
                                current.log_envelopes_));
      status.Update(Take<float>("reduced.covered_masses", reduced.covered_masses(), arrays, count,
                                current.covered_masses_));
      break;
    }
    case v1::EvaluateRequest::FORM_NOT_SET:
      status = absl::InvalidArgumentError("form: none is set");
  }
  if (!status.ok()) return status;
  return current;
}

CurrentView CurrentArrays::Read(size_t first, size_t count, Scratch& scratch) const {
  CurrentView view{.sampled_log_probs = ReadSampled(first, count, scratch),
                   .log_probs = {},
                   .log_envelopes = {},
                   .covered_masses = {}};
  if (log_envelopes_.size() != 0) {
    view.log_envelopes = log_envelopes_.Read<float>(first, count, scratch.log_envelopes);
    view.covered_masses = covered_masses_.Read<float>(first, count, scratch.covered_masses);
  } else if (ragged()) {
    ReadRagged(first, count, scratch, view);
  } else {
    view.log_probs = log_probs_.Read<float>(first * slots_, count * slots_, scratch.log_probs);
  }
  return view;
}

std::span<const float> CurrentArrays::ReadSampled(size_t first, size_t count,
                                                  Scratch& scratch) const {
  return sampled_log_probs_.Read<float>(first, count, scratch.sampled_log_probs);
}

void CurrentArrays::ReadRagged(size_t first, size_t count, Scratch& scratch,
                               CurrentView& view) const {
  view.counts = Counts(first, count);
  const size_t begin = RaggedBegin(first);
  const size_t values = std::accumulate(view.counts.begin(), view.counts.end(), size_t{0});
  view.log_probs = log_probs_.Read(begin, values, scratch.log_probs);
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

absl::Status CurrentArrays::ParseGathered(const v1::Gathered& gathered,
                                          const ReceivedArrays& arrays, size_t count) {
  absl::Status status = ParseCounts(gathered, arrays, count);
  if (!status.ok()) return status;
  status = Take<float>("gathered.log_probs", gathered.log_probs(), arrays,
                       ragged() ? all_values_ : count * slots_, log_probs_);
  status.Update(Take<float>("gathered.sampled_log_probs", gathered.sampled_log_probs(), arrays,
                            count, sampled_log_probs_));
  return status;
}

absl::Status CurrentArrays::ParseCounts(const v1::Gathered& gathered, const ReceivedArrays& arrays,
                                        size_t count) {
  ArrayField field;
  if (arrays.Of(gathered.top_k_counts()).size() == 0) return absl::OkStatus();
  absl::Status status =
      Take<uint16_t>("gathered.top_k_counts", gathered.top_k_counts(), arrays, count, field);
  if (!status.ok()) return status;
  std::vector<uint16_t> scratch;
  const std::span<const uint16_t> counts = field.Read<uint16_t>(0, count, scratch);
  counts_.assign(counts.begin(), counts.end());
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
