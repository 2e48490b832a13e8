#include "server/evaluate/current_arrays.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/wire/arrays.h"

namespace sis {
namespace {

float Bfloat16(uint16_t half) { return std::bit_cast<float>(static_cast<uint32_t>(half) << 16); }

// A row of log-probs from a row of logits. A log-sum-exp that is not finite makes them NaN, as a
// NaN logit does, which is refused where the position is used.
void Normalize(std::span<const float> logits, double log_sum_exp, std::span<float> log_probs) {
  const double sum =
      std::isfinite(log_sum_exp) ? log_sum_exp : std::numeric_limits<double>::quiet_NaN();
  for (size_t i = 0; i < logits.size(); ++i) {
    log_probs[i] = Flush(static_cast<float>(static_cast<double>(logits[i]) - sum));
  }
}

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
                                                   const RunConfig& config, const Limits& limits) {
  CurrentArrays current;
  current.slots_ = config.top_k;
  current.vocabulary_size_ = static_cast<int32_t>(config.vocabulary_size);
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
    case v1::EvaluateRequest::kTopKSet:
      status = current.ParseTopKSet(request.top_k_set(), arrays, count, limits.max_top_k);
      break;
    case v1::EvaluateRequest::kDense: {
      absl::StatusOr<DenseLogits> dense =
          DenseLogits::Parse(request.dense(), arrays, count, current.vocabulary_size_);
      if (!dense.ok()) return dense.status();
      current.dense_ = *std::move(dense);
      break;
    }
    case v1::EvaluateRequest::FORM_NOT_SET:
      status = absl::InvalidArgumentError("form: none is set");
  }
  if (!status.ok()) return status;
  return current;
}

CurrentView CurrentArrays::Read(size_t first, size_t count, Scratch& scratch,
                                bool each_once) const {
  CurrentView view{.sampled_log_probs = ReadSampled(first, count, scratch),
                   .log_probs = {},
                   .log_envelopes = {},
                   .covered_masses = {}};
  if (dense_) {
    view.log_probs = Room(scratch.log_probs, count * slots_);
  } else if (set_slots_ != 0) {
    view.log_envelopes = Room(scratch.log_envelopes, count);
    view.covered_masses = Room(scratch.covered_masses, count);
  } else if (log_envelopes_.size() != 0) {
    view.log_envelopes = log_envelopes_.Read<float>(first, count, scratch.log_envelopes);
    view.covered_masses = covered_masses_.Read<float>(first, count, scratch.covered_masses);
  } else if (ragged()) {
    ReadRagged(first, count, scratch, each_once, view);
  } else if (values_ == v1::Gathered::FLOAT16_LOG_PROBS) {
    view.float16_log_probs =
        each_once ? log_probs_.ReadOnce(first * slots_, count * slots_, scratch.halves)
                  : log_probs_.Read(first * slots_, count * slots_, scratch.halves);
  } else {
    view.log_probs = ReadLogProbs(log_probs_, slots_, first, count, scratch, scratch.log_probs);
  }
  return view;
}

std::span<const float> CurrentArrays::ReadSampled(size_t first, size_t count,
                                                  Scratch& scratch) const {
  return ReadLogProbs(sampled_log_probs_, 1, first, count, scratch, scratch.sampled_log_probs);
}

std::span<const float> CurrentArrays::ReadLogProbs(const ArrayField& rows, size_t width,
                                                   size_t first, size_t count, Scratch& scratch,
                                                   std::vector<float>& log_probs) const {
  if (!of_logits()) return rows.Read<float>(first * width, count * width, log_probs);
  const std::span<const float> logits = ReadLogits(rows, first * width, count * width, scratch);
  const std::span<const double> sums =
      log_sum_exps_.Read<double>(first, count, scratch.log_sum_exps);
  const std::span<float> normalized = Room(log_probs, count * width);
  for (size_t i = 0; i < count; ++i) {
    Normalize(logits.subspan(i * width, width), sums[i], normalized.subspan(i * width, width));
  }
  return normalized;
}

std::span<const float> CurrentArrays::ReadLogits(const ArrayField& array, size_t first,
                                                 size_t count, Scratch& scratch) const {
  if (values_ == v1::Gathered::LOGITS) return array.Read<float>(first, count, scratch.logits);
  const std::span<float> logits = Room(scratch.logits, count);
  std::ranges::transform(array.Read<uint16_t>(first, count, scratch.halves), logits.begin(),
                         Bfloat16);
  return logits;
}

void CurrentArrays::ReadRagged(size_t first, size_t count, Scratch& scratch, bool each_once,
                               CurrentView& view) const {
  view.counts = Counts(first, count);
  const size_t begin = RaggedBegin(first);
  const size_t values = std::accumulate(view.counts.begin(), view.counts.end(), size_t{0});
  const auto read = [&](auto& memory) {
    return each_once ? log_probs_.ReadOnce(begin, values, memory)
                     : log_probs_.Read(begin, values, memory);
  };
  if (values_ == v1::Gathered::FLOAT16_LOG_PROBS) {
    view.float16_log_probs = read(scratch.halves);
    return;
  }
  if (!of_logits()) {
    view.log_probs = read(scratch.log_probs);
    return;
  }
  const std::span<const float> logits = ReadLogits(log_probs_, begin, values, scratch);
  const std::span<const double> sums =
      log_sum_exps_.Read<double>(first, count, scratch.log_sum_exps);
  const std::span<float> log_probs = Room(scratch.log_probs, values);
  size_t next = 0;
  for (size_t i = 0; i < count; ++i) {
    const size_t used = view.counts[i];
    Normalize(logits.subspan(next, used), sums[i], log_probs.subspan(next, used));
    next += used;
  }
  view.log_probs = log_probs;
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
                   .float16_log_probs = {},
                   .counts = part(view.counts, 1)};
  if (!ragged()) {
    some.log_probs = part(view.log_probs, slots_);
    some.float16_log_probs = part(view.float16_log_probs, slots_);
    return some;
  }
  const size_t begin = RaggedBegin(first) - RaggedBegin(read_first);
  const size_t values = std::accumulate(some.counts.begin(), some.counts.end(), size_t{0});
  const auto used = [&](auto array) {
    return array.empty() ? array : array.subspan(begin, values);
  };
  some.log_probs = used(view.log_probs);
  some.float16_log_probs = used(view.float16_log_probs);
  return some;
}

size_t CurrentArrays::values_per_position() const {
  if (ragged()) return 1 + all_values_ / counts_.size();
  return dense_ ? dense_->vocabulary_size() : std::max(slots_, set_slots_);
}

absl::Status CurrentArrays::GatherAtRecords(const RecordRows& records,
                                            const PositionRange& positions, size_t row,
                                            Scratch& scratch) const {
  const size_t count = positions.count;
  return dense_->Gather(positions, records.sampled_ids, records.ids, static_cast<int>(slots_),
                        {std::span(scratch.sampled_log_probs).subspan(row, count),
                         std::span(scratch.log_probs).subspan(row * slots_, count * slots_)},
                        scratch.dense);
}

absl::Status CurrentArrays::ReduceSets(const RecordedSets& records, const PositionRange& positions,
                                       size_t row, Scratch& scratch) const {
  const size_t first = positions.offset * set_slots_;
  const size_t values = positions.count * set_slots_;
  return ReduceTopKSets(
      records,
      {static_cast<int>(set_slots_), set_ids_.Read<int32_t>(first, values, scratch.set_ids),
       set_log_probs_.Read<float>(first, values, scratch.set_log_probs)},
      vocabulary_size_, positions.first_position,
      {std::span(scratch.log_envelopes).subspan(row, positions.count),
       std::span(scratch.covered_masses).subspan(row, positions.count)});
}

absl::Status CurrentArrays::ParseTopKSet(const v1::TopK& set, const ReceivedArrays& arrays,
                                         size_t count, int max_top_k) {
  if (set.top_k() < 1 || set.top_k() > static_cast<uint32_t>(max_top_k)) {
    return absl::InvalidArgumentError(
        absl::StrCat("top_k_set.top_k: ", set.top_k(), " is not in [1, ", max_top_k, "]"));
  }
  set_slots_ = set.top_k();
  absl::Status status =
      Take<int32_t>("top_k_set.ids", set.ids(), arrays, count * set_slots_, set_ids_);
  status.Update(Take<float>("top_k_set.log_probs", set.log_probs(), arrays, count * set_slots_,
                            set_log_probs_));
  status.Update(Take<float>("top_k_set.sampled_log_probs", set.sampled_log_probs(), arrays, count,
                            sampled_log_probs_));
  return status;
}

absl::Status CurrentArrays::ParseGathered(const v1::Gathered& gathered,
                                          const ReceivedArrays& arrays, size_t count) {
  values_ = gathered.values();
  absl::Status status = ParseCounts(gathered, arrays, count);
  if (!status.ok()) return status;
  switch (values_) {
    case v1::Gathered::LOG_PROBS:
    case v1::Gathered::FLOAT16_LOG_PROBS:
      if (arrays.Of(gathered.log_sum_exps()).size() != 0) {
        return absl::InvalidArgumentError(
            "gathered.log_sum_exps: set, but the values are log-probs");
      }
      return values_ == v1::Gathered::LOG_PROBS
                 ? TakeGathered<float, float>(gathered, arrays, count)
                 : TakeGathered<uint16_t, float>(gathered, arrays, count);
    case v1::Gathered::LOGITS:
      status = TakeGathered<float, float>(gathered, arrays, count);
      break;
    case v1::Gathered::BFLOAT16_LOGITS:
      status = TakeGathered<uint16_t, uint16_t>(gathered, arrays, count);
      break;
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "gathered.values: ", static_cast<int>(gathered.values()), " is not one of them"));
  }
  status.Update(
      Take<double>("gathered.log_sum_exps", gathered.log_sum_exps(), arrays, count, log_sum_exps_));
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

template <typename Value, typename Sampled>
absl::Status CurrentArrays::TakeGathered(const v1::Gathered& gathered, const ReceivedArrays& arrays,
                                         size_t count) {
  absl::Status status = Take<Value>("gathered.log_probs", gathered.log_probs(), arrays,
                                    ragged() ? all_values_ : count * slots_, log_probs_);
  status.Update(Take<Sampled>("gathered.sampled_log_probs", gathered.sampled_log_probs(), arrays,
                              count, sampled_log_probs_));
  return status;
}

}  // namespace sis
