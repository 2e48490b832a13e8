#include "client/study/kernel_decisions.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "client/study/random.h"
#include "kernels/decide/algorithms/expected_weight.h"
#include "kernels/decide/algorithms/top_k_divergences.h"
#include "kernels/numerics/sequence_key.h"
#include "kernels/records/log_probs.h"

namespace sis::study {
namespace {

uint16_t RankOf(int32_t id, std::span<const int32_t> ids) {
  const auto found = std::find(ids.begin(), ids.end(), id);
  return found == ids.end() ? kRankOutside : static_cast<uint16_t>(found - ids.begin());
}

}  // namespace

void KernelDecisions::Record(Records records) {
  records_ = std::move(records);
  const auto slots = static_cast<size_t>(records_.top_k);
  ranks_.assign(records_.sampled_ids.size(), kRankOutside);
  std::vector<uint16_t> used_slots(records_.length);
  for (size_t i = 0; i < records_.lengths.size(); ++i) {
    const size_t length = records_.lengths[i];
    const size_t first = i * records_.length;
    const std::span rows = std::span(records_.log_probs).subspan(first * slots, length * slots);
    const std::vector<float> unrounded(rows.begin(), rows.end());
    RoundBehaviorRows(encoding_, unrounded, records_.top_k, rows,
                      std::span(used_slots).first(length));
    for (size_t t = 0; t < length; ++t) {
      const size_t row = first + t;
      ranks_[row] = RankOf(records_.sampled_ids[row],
                           std::span(records_.ids).subspan(row * slots, used_slots[t]));
    }
  }
}

Decided KernelDecisions::Decide(const MiniBatch& batch) const {
  const auto slots = static_cast<size_t>(records_.top_k);
  const size_t count = batch.sampled_log_probs.size();
  const EvaluateParameters parameters = {
      .slots = records_.top_k, .top_k = records_.top_k, .draw = batch.draw};
  Decided decided{.decisions = std::vector<Decision>(count),
                  .acceptance_probabilities = std::vector<float>(count),
                  .log_modified_ratios = std::vector<float>(count),
                  .coefficients = std::vector<float>(count)};
  std::vector<float> log_ratios(count), log_envelopes(count), covered_masses(count);
  std::vector<float> reference_log_probs(count), total_variations(count);
  // Of what arms explore.
  std::vector<size_t> lengths;
  std::vector<float> behavior;
  std::vector<uint16_t> ranks;
  std::vector<SequenceStretch> parts;
  Sums sums;
  size_t at = 0;
  for (const size_t response : batch.responses) {
    const size_t length = records_.lengths[response];
    const size_t row = response * records_.length;
    const uint64_t key = SequenceKey(run_seed_, 0, records_.SequenceId(response));
    const auto recorded = [&](const auto& values, size_t columns = 1) {
      return std::span(values).subspan(row * columns, length * columns);
    };
    const auto part = [&](auto& values, size_t columns = 1) {
      return std::span(values).subspan(at * columns, length * columns);
    };
    const Stretch stretch = {
        .sequence_key = key,
        .first_position = 0,
        .behavior = {.log_probs = recorded(records_.log_probs, slots),
                     .sampled_log_probs = recorded(records_.sampled_log_probs),
                     .sampled_ranks = recorded(ranks_)},
        .current = {.sampled_log_probs = part(batch.sampled_log_probs),
                    .log_probs = part(batch.log_probs, slots),
                    .log_envelopes = {},
                    .covered_masses = {}},
        .output = {.decisions = part(decided.decisions),
                   .acceptance_probabilities = part(decided.acceptance_probabilities),
                   .log_ratios = part(log_ratios),
                   .log_envelopes = part(log_envelopes),
                   .covered_masses = part(covered_masses)},
        .sums = &sums};
    backend_.Evaluate(parameters, {&stretch, 1});
    if (std::holds_alternative<DppoTopK>(arm_.algorithm)) {
      ComputeTopKDivergences<TopKTotalVariation>(parameters, stretch, part(total_variations));
    }
    std::ranges::copy(stretch.behavior.sampled_log_probs, part(reference_log_probs).begin());
    if (arm_.explored) {
      lengths.push_back(length);
      behavior.insert(behavior.end(), stretch.behavior.log_probs.begin(),
                      stretch.behavior.log_probs.end());
      const auto own_ranks = recorded(ranks_);
      ranks.insert(ranks.end(), own_ranks.begin(), own_ranks.end());
    }
    parts.push_back({key, 0, static_cast<uint32_t>(length)});
    at += length;
  }

  const auto uniform = [&](size_t i) {
    return Uniform(HashOf({run_seed_, 20, batch.draw, batch.responses.front(), i}));
  };
  std::vector<TokenState> states(count, TokenState::kOffPolicy);
  for (size_t i = 0; i < count; ++i) {
    if (arm_.without_sets) {
      const float a = Exp32(-std::abs(log_ratios[i]));
      decided.acceptance_probabilities[i] = a;
      decided.decisions[i] = uniform(i) < a ? Decision::kAccepted : Decision::kRejected;
    }
    bool on_policy = decided.decisions[i] == Decision::kAccepted;
    if (arm_.correction == Correction::kRandom) {
      on_policy = uniform(i) < ExpectedAcceptance({log_envelopes[i], covered_masses[i]});
      decided.decisions[i] = on_policy ? Decision::kAccepted : Decision::kRejected;
    } else if (arm_.correction == Correction::kPositive) {
      on_policy = on_policy && batch.advantages[i] > 0.0f;
    } else if (arm_.correction != Correction::kSampled) {
      on_policy = false;
    }
    if (on_policy) states[i] = TokenState::kOnPolicy;
    decided.log_modified_ratios[i] = on_policy ? 0.0f : log_ratios[i];
    if (arm_.correction == Correction::kExpected) {
      decided.log_modified_ratios[i] =
          LogExpectedRatio(decided.acceptance_probabilities[i], log_ratios[i]);
    }
  }
  ApplyAlgorithm(arm_.algorithm,
                 {.parts = parts,
                  .states = states,
                  .log_ratios = decided.log_modified_ratios,
                  .current_log_probs = batch.sampled_log_probs,
                  .reference_log_probs = reference_log_probs,
                  .total_variations = total_variations,
                  .log_importance_ratios = log_ratios,
                  .acceptance_probabilities = decided.acceptance_probabilities,
                  .advantages = batch.advantages,
                  .draw = batch.draw},
                 {.coefficients = decided.coefficients});
  if (arm_.explored) {
    std::vector<double> uniforms(count);
    for (size_t i = 0; i < count; ++i) uniforms[i] = uniform(i);
    arm_.explored->Apply({.lengths = lengths,
                          .top_k = slots,
                          .behavior = behavior,
                          .current = batch.log_probs,
                          .sampled_behavior = reference_log_probs,
                          .sampled_current = batch.sampled_log_probs,
                          .ranks = ranks,
                          .acceptance_probabilities = decided.acceptance_probabilities,
                          .log_envelopes = log_envelopes,
                          .advantages = batch.advantages,
                          .uniforms = uniforms},
                         decided.coefficients);
  }
  for (size_t i = 0; i < count; ++i) {
    if (batch.advantages[i] < 0.0f && Exp32(decided.log_modified_ratios[i]) > arm_.dual_clip) {
      decided.coefficients[i] = 0.0f;
    }
  }
  at = 0;
  for (const size_t response : batch.responses) {
    const size_t length = records_.lengths[response];
    const std::span engine_log_probs =
        std::span(records_.engine_log_probs).subspan(response * records_.length, length);
    arm_.mismatch.Apply(std::span(reference_log_probs).subspan(at, length), engine_log_probs,
                        std::span(decided.coefficients).subspan(at, length));
    at += length;
  }
  return decided;
}

}  // namespace sis::study
