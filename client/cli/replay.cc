#include "client/cli/replay.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/api/reduce.h"

namespace sis {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr uint32_t kPositionsPerBlock = 1024;
// Long enough for one replay; what one that dies leaves behind goes by itself.
constexpr absl::Duration kKept = absl::Minutes(10);

struct Range {
  uint32_t first;
  uint32_t length;
};

// The ranges of positions in [0, end) where `wanted` holds, each of at most max_length.
template <typename Predicate>
std::vector<Range> RangesWhere(uint32_t end, uint32_t max_length, Predicate wanted) {
  std::vector<Range> ranges;
  bool open = false;
  for (uint32_t position = 0; position < end; ++position) {
    if (!wanted(position)) {
      open = false;
    } else if (open && ranges.back().length < max_length) {
      ++ranges.back().length;
    } else {
      ranges.push_back({position, 1});
      open = true;
    }
  }
  return ranges;
}

// Both recordings were sampled in the same context up to and including the first difference.
uint32_t CommonPrefix(const RecordedPair& recordings) {
  const auto& behavior = recordings.behavior.positions;
  const auto& current = recordings.current.positions;
  const size_t shorter = std::min(behavior.size(), current.size());
  for (size_t i = 0; i < shorter; ++i) {
    if (behavior[i].sampled_id != current[i].sampled_id) return static_cast<uint32_t>(i + 1);
  }
  return static_cast<uint32_t>(shorter);
}

absl::Status AppendBehavior(Client& client, const RunRef& run, const SequenceRef& sequence,
                            const RecordedPair& recordings, int top_k) {
  v1::Sampling sampling;
  sampling.set_log_probs(v1::Sampling::PROCESSED);
  sampling.set_temperature(1);
  const auto stream = client.Append(run, sampling, recordings.vocabulary_size);
  const std::vector<RecordedSet>& sets = recordings.behavior.positions;
  const auto size = static_cast<uint32_t>(sets.size());
  const auto has_log_prob = [&](uint32_t i) { return std::isfinite(sets[i].sampled_log_prob); };
  for (const Range& range : RangesWhere(size, kPositionsPerBlock, has_log_prob)) {
    std::vector<int32_t> sampled_ids, ids;
    std::vector<float> sampled_log_probs, log_probs;
    for (uint32_t i = range.first; i < range.first + range.length; ++i) {
      sampled_ids.push_back(sets[i].sampled_id);
      sampled_log_probs.push_back(sets[i].sampled_log_prob);
      for (size_t slot = 0; slot < top_k; ++slot) {
        const bool used = slot < sets[i].top.size();
        ids.push_back(used ? sets[i].top[slot].id : -1);
        log_probs.push_back(used ? sets[i].top[slot].log_prob : -kInfinity);
      }
    }
    absl::Status status = stream->Block(sequence, range.first, /*policy_version=*/0,
                                        {sampled_ids, sampled_log_probs, ids, log_probs});
    if (!status.ok()) return status;
  }
  if (absl::Status status = stream->Seal(sequence, size); !status.ok()) return status;
  const absl::StatusOr<std::vector<RefusedEntry>> refused = stream->Finish();
  if (!refused.ok()) return refused.status();
  return refused->empty() ? absl::OkStatus() : refused->front().status;
}

struct CurrentValues {
  std::vector<float> sampled_log_probs;
  ReducedSlots reduced;
};

// The current recording's values at the fetched records.
CurrentValues Gather(const TopKRecords& records, const Recording& current) {
  CurrentValues values;
  std::vector<float> bounds, exact;
  size_t row = 0;
  for (const Slice& slice : records.slices) {
    for (uint32_t i = 0; i < slice.length; ++i, ++row) {
      const RecordedSet& set = current.positions[slice.first_position + i];
      const float least = set.top.empty() ? 0.0f : set.top.back().log_prob;
      values.sampled_log_probs.push_back(
          set.LogProbOf(records.sampled_ids[row]).value_or(-kInfinity));
      for (int slot = 0; slot < records.top_k; ++slot) {
        const auto log_prob = set.LogProbOf(records.ids[row * records.top_k + slot]);
        bounds.push_back(log_prob.value_or(least));
        exact.push_back(log_prob.value_or(-kInfinity));
      }
    }
  }
  // The bounds make the envelope, what is listed makes the mass.
  values.reduced = Reduce(records.log_probs, bounds, records.top_k, records.top_k);
  values.reduced.covered_masses =
      Reduce(records.log_probs, exact, records.top_k, records.top_k).covered_masses;
  return values;
}

absl::StatusOr<v1::Totals> EvaluateCurrent(Client& client, const RunRef& run,
                                           const std::vector<Slice>& slices,
                                           const Recording& current) {
  if (slices.empty()) return v1::Totals();
  const absl::StatusOr<TopKRecords> records = client.FetchTopK(run, slices);
  if (!records.ok()) return records.status();
  const CurrentValues values = Gather(*records, current);
  const absl::StatusOr<Evaluation> evaluation =
      client.Evaluate(run, records->slices,
                      ReducedValues{values.sampled_log_probs, values.reduced.log_envelopes,
                                    values.reduced.covered_masses},
                      EvaluateOptions{});
  if (!evaluation.ok()) return evaluation.status();
  if (evaluation->totals.missing() > 0) {
    return absl::UnavailableError(absl::StrCat("the server has dropped ",
                                               evaluation->totals.missing(),
                                               " of the positions it was just sent"));
  }
  return evaluation->totals;
}

ReplaySummary Summarise(uint64_t positions, const v1::Totals& totals) {
  const uint64_t scored = totals.accepted() + totals.rejected() + totals.outside_top_k();
  const auto mean = [&](double sum) { return sum / static_cast<double>(scored); };
  return {.positions = positions,
          .unscored = positions - scored,
          .accepted = totals.accepted(),
          .rejected = totals.rejected(),
          .outside_top_k = totals.outside_top_k(),
          .d = totals.d(),
          .d_sis = totals.d_sis(),
          .accept_rate = mean(static_cast<double>(totals.accepted())),
          .mean_acceptance_probability = mean(totals.acceptance_probability()),
          .mean_k3 = mean(totals.k3()),
          .mean_log_envelope = mean(totals.log_envelope()),
          .mean_residual_mass = mean(totals.residual_mass())};
}

}  // namespace

absl::StatusOr<ReplaySummary> Replay(Client& client, const RecordedPair& recordings,
                                     const ReplayOptions& options) {
  if (recordings.behavior.top_k == 0) {
    return absl::InvalidArgumentError("the behaviour file lists no top_logprobs at any position");
  }
  const auto recorded = static_cast<uint32_t>(recordings.behavior.top_k);
  const uint32_t top_k = options.top_k == 0 ? recorded : std::min(options.top_k, recorded);
  const uint32_t positions = CommonPrefix(recordings);
  // Decisions do not depend on the run's id, only on its seed and the sequence's.
  const SequenceRef sequence{"recorded"};
  std::vector<Slice> slices;
  const auto has_ratio = [&](uint32_t i) {
    const RecordedSet& behavior = recordings.behavior.positions[i];
    return std::isfinite(behavior.sampled_log_prob) &&
           recordings.current.positions[i].LogProbOf(behavior.sampled_id).has_value();
  };
  for (const Range& range : RangesWhere(positions, positions, has_ratio)) {
    slices.push_back({sequence, range.first, range.length});
  }

  v1::RunConfig config;
  config.set_seed(options.seed);
  config.set_vocabulary_size(recordings.vocabulary_size);
  config.set_top_k(top_k);
  config.set_time_to_live_seconds(absl::ToDoubleSeconds(kKept));
  config.set_task("replay");
  config.set_log_prob_encoding(v1::FLOAT32);  // the recordings' own ratios
  const RunRef run{absl::StrFormat("replay-%x-%x", absl::GetCurrentTimeNanos(), getpid())};
  const absl::StatusOr<v1::CreateRunResponse> created = client.CreateRun(run.run_id, config);
  if (!created.ok()) return created.status();
  absl::Status status = AppendBehavior(client, run, sequence, recordings, static_cast<int>(top_k));
  absl::StatusOr<v1::Totals> totals =
      status.ok() ? EvaluateCurrent(client, run, slices, recordings.current) : status;
  status = client.DeleteRun(run).status();
  if (!totals.ok()) return totals.status();
  if (!status.ok()) return status;
  return Summarise(positions, *totals);
}

}  // namespace sis
