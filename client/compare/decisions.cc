#include "client/compare/decisions.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/compare/compared_positions.h"
#include "kernels/decide/decide.h"
#include "kernels/decide/scalar_backend.h"
#include "kernels/numerics/philox.h"
#include "kernels/numerics/sequence_key.h"
#include "kernels/records/record_view.h"
#include "kernels/records/validate.h"

namespace sis {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// The record of one position, [K].
struct Record {
  std::vector<int32_t> ids;
  std::vector<float> log_probs;
};

Record RecordOf(const RecordedSet& set, size_t top_k) {
  Record record{std::vector<int32_t>(top_k, -1), std::vector<float>(top_k, -kInfinity)};
  for (size_t slot = 0; slot < std::min(top_k, set.top.size()); ++slot) {
    record.ids[slot] = set.top[slot].id;
    record.log_probs[slot] = set.top[slot].log_prob;
  }
  return record;
}

// The current policy's values at a record: the bounds make the envelope, what is listed the mass.
Envelope EnvelopeOf(const Record& record, const RecordedSet& current) {
  const float least = current.top.empty() ? 0.0f : current.top.back().log_prob;
  EnvelopeAccumulator bounds, exact;
  for (size_t slot = 0; slot < record.ids.size(); ++slot) {
    const auto log_prob = current.LogProbOf(record.ids[slot]);
    bounds.Add(record.log_probs[slot], log_prob.value_or(least));
    exact.Add(record.log_probs[slot], log_prob.value_or(-kInfinity));
  }
  return {bounds.Finish().log_envelope, exact.Finish().covered_mass};
}

// `current_log_prob` is the sampled token's.
absl::StatusOr<DecidedPosition> DecidePosition(const RecordedSet& behavior,
                                               const RecordedSet& current, float current_log_prob,
                                               int32_t vocabulary_size, int top_k,
                                               uint64_t sequence_key, uint32_t position,
                                               Sums& sums) {
  const Record record = RecordOf(behavior, top_k);
  const std::vector<int32_t> sampled_ids = {behavior.sampled_id};
  const std::vector<float> sampled_log_probs = {behavior.sampled_log_prob};
  const std::vector<float> current_log_probs = {current_log_prob};
  std::vector<uint8_t> ranks(1);
  absl::Status status =
      ValidateRecords({sampled_ids, sampled_log_probs, record.ids, record.log_probs}, top_k,
                      vocabulary_size, position, ranks);
  if (!status.ok()) return status;
  const Envelope envelope = EnvelopeOf(record, current);
  const std::vector<float> log_envelopes = {envelope.log_envelope};
  const std::vector<float> covered_masses = {envelope.covered_mass};

  std::vector<Decision> decisions(1);
  std::vector<float> acceptance_probabilities(1);
  const Stretch stretch{
      .sequence_key = sequence_key,
      .first_position = position,
      .behavior = {record.log_probs, sampled_log_probs, ranks},
      .current = {current_log_probs, {}, log_envelopes, covered_masses},
      .output = {.decisions = decisions, .acceptance_probabilities = acceptance_probabilities},
      .sums = &sums};
  ScalarBackend().Evaluate({.slots = top_k, .top_k = top_k, .draw = 0}, {&stretch, 1});
  return DecidedPosition{.decision = decisions[0],
                         .log_ratio = Flush(current_log_prob - behavior.sampled_log_prob),
                         .acceptance_probability = acceptance_probabilities[0],
                         .log_envelope = envelope.log_envelope,
                         .residual_mass = ResidualMass(envelope)};
}

}  // namespace

absl::StatusOr<Decisions> DecideAll(const Recording& behavior, const Recording& current,
                                    int32_t vocabulary_size, const DecideOptions& options) {
  // A recording without lists has one slot, which is never used.
  const auto recorded = static_cast<uint32_t>(std::clamp(behavior.top_k, 1, kMaxTopK));
  Decisions all;
  all.top_k = static_cast<int>(options.top_k == 0 ? recorded : std::min(options.top_k, recorded));
  for (size_t i = 0; i < behavior.sequences.size(); ++i) {
    const RecordedSets& behavior_sets = behavior.sequences[i];
    const RecordedSets& current_sets = current.sequences[i];
    const uint64_t key = SequenceKey(options.seed, /*attempt=*/0, std::to_string(i));
    std::vector<DecidedPosition>& decided = all.sequences.emplace_back();
    const size_t prefix = CommonPrefix(behavior_sets, current_sets);
    for (size_t t = 0; t < prefix; ++t) {
      const auto position = static_cast<uint32_t>(t);
      const uint32_t uniform = AcceptanceUniforms(key, position / 4, /*draw=*/0).word[position % 4];
      const auto current_log_prob = current_sets[t].LogProbOf(behavior_sets[t].sampled_id);
      ++all.positions;
      if (!current_log_prob || !std::isfinite(behavior_sets[t].sampled_log_prob)) {
        ++all.unscored;
        decided.push_back({Decision::kMissing, kNaN, kNaN, kNaN, kNaN, uniform});
        continue;
      }
      Sums sums;
      absl::StatusOr<DecidedPosition> result =
          DecidePosition(behavior_sets[t], current_sets[t], *current_log_prob, vocabulary_size,
                         all.top_k, key, position, sums);
      if (!result.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("sequence ", i, ": ", result.status().message()));
      }
      if (sums.invalid > 0) {
        ++all.unscored;
        decided.push_back({Decision::kMissing, kNaN, kNaN, kNaN, kNaN, uniform});
        continue;
      }
      all.sums += sums;
      result->uniform = uniform;
      decided.push_back(*result);
    }
  }
  return all;
}

}  // namespace sis
