#include "client/compare/decisions.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <string>

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

// kMissing also if the current policy's values are not valid together. `all` are those of the
// others.
absl::StatusOr<DecidedPosition> DecidePosition(const RecordedSet& behavior,
                                               const RecordedSet& current, int32_t vocabulary_size,
                                               int top_k, uint64_t sequence_key, uint32_t position,
                                               Sums& all) {
  DecidedPosition decided{
      .uniform = AcceptanceUniforms(sequence_key, position / 4, /*draw=*/0).word[position % 4]};
  const std::optional<float> current_log_prob = current.LogProbOf(behavior.sampled_id);
  if (!current_log_prob || !std::isfinite(behavior.sampled_log_prob)) return decided;
  const Record record = RecordOf(behavior, top_k);
  const std::span<const float> sampled_log_prob(&behavior.sampled_log_prob, 1);
  uint16_t rank = 0;
  absl::Status status =
      ValidateRecords({{&behavior.sampled_id, 1}, sampled_log_prob, record.ids, record.log_probs},
                      top_k, vocabulary_size, position, {&rank, 1});
  if (!status.ok()) return status;
  const Envelope envelope = EnvelopeOf(record, current);
  Decision decision = Decision::kMissing;
  float acceptance_probability = 0;
  Sums sums;
  const Stretch stretch{.sequence_key = sequence_key,
                        .first_position = position,
                        .behavior = {record.log_probs, sampled_log_prob, {&rank, 1}},
                        .current = {{&*current_log_prob, 1},
                                    {},
                                    {&envelope.log_envelope, 1},
                                    {&envelope.covered_mass, 1}},
                        .output = {.decisions = {&decision, 1},
                                   .acceptance_probabilities = {&acceptance_probability, 1}},
                        .sums = &sums};
  ScalarBackend().Evaluate({.slots = top_k, .top_k = top_k, .draw = 0}, {&stretch, 1});
  if (sums.invalid > 0) return decided;
  all += sums;
  decided.decision = decision;
  decided.log_ratio = Flush(*current_log_prob - behavior.sampled_log_prob);
  decided.acceptance_probability = acceptance_probability;
  decided.log_envelope = envelope.log_envelope;
  decided.residual_mass = ResidualMass(envelope);
  return decided;
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
    // Up to and including the first where the sampled tokens differ.
    const size_t in_common = std::min(
        {EqualTokens(behavior_sets, current_sets) + 1, behavior_sets.size(), current_sets.size()});
    for (uint32_t t = 0; t < in_common; ++t) {
      const absl::StatusOr<DecidedPosition> position = DecidePosition(
          behavior_sets[t], current_sets[t], vocabulary_size, all.top_k, key, t, all.sums);
      if (!position.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("sequence ", i, ": ", position.status().message()));
      }
      ++all.positions;
      all.unscored += position->decision == Decision::kMissing;
      decided.push_back(*position);
    }
  }
  return all;
}

}  // namespace sis
