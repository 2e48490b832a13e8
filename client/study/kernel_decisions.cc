#include "client/study/kernel_decisions.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "client/study/random.h"
#include "kernels/decide/algorithms/expected_weight.h"
#include "kernels/decide/algorithms/positive_advantages.h"
#include "kernels/decide/algorithms/top_k_total_variation.h"
#include "kernels/numerics/sequence_key.h"
#include "kernels/records/log_probs.h"

namespace sis::study {
namespace {

uint8_t RankOf(int32_t id, std::span<const int32_t> ids) {
  const auto found = std::find(ids.begin(), ids.end(), id);
  return found == ids.end() ? kRankOutside : static_cast<uint8_t>(found - ids.begin());
}

}  // namespace

void KernelDecisions::Record(Records records) {
  records_ = std::move(records);
  const auto slots = static_cast<size_t>(records_.top_k);
  ranks_.assign(records_.sampled_ids.size(), kRankOutside);
  std::vector<uint8_t> used_slots(records_.length);
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

Decided KernelDecisions::Decide(const MiniBatch& batch) {
  const auto slots = static_cast<size_t>(records_.top_k);
  const size_t count = batch.sampled_log_probs.size();
  Decided decided;
  decided.decisions.resize(count);
  decided.acceptance_probabilities.resize(count);
  decided.log_modified_ratios.resize(count);
  decided.coefficients.resize(count);
  log_ratios_.resize(count);
  log_envelopes_.resize(count);
  covered_masses_.resize(count);
  std::vector<float> reference_log_probs(count);
  std::vector<Stretch> stretches;
  std::vector<SequenceStretch> parts;
  Sums sums;
  size_t at = 0;
  for (const size_t response : batch.responses) {
    const size_t length = records_.lengths[response];
    const size_t row = response * records_.length;
    const uint64_t key = SequenceKey(run_seed_, 0, records_.SequenceId(response));
    const std::span behavior_sampled =
        std::span<const float>(records_.sampled_log_probs).subspan(row, length);
    std::copy(behavior_sampled.begin(), behavior_sampled.end(),
              reference_log_probs.begin() + static_cast<std::ptrdiff_t>(at));
    const auto part = [&](std::vector<float>& values) {
      return std::span(values).subspan(at, length);
    };
    stretches.push_back(
        {.sequence_key = key,
         .first_position = 0,
         .behavior = {.log_probs = std::span<const float>(records_.log_probs)
                                       .subspan(row * slots, length * slots),
                      .sampled_log_probs = behavior_sampled,
                      .sampled_ranks = std::span<const uint8_t>(ranks_).subspan(row, length)},
         .current = {.sampled_log_probs =
                         std::span<const float>(batch.sampled_log_probs).subspan(at, length),
                     .log_probs = std::span<const float>(batch.log_probs)
                                      .subspan(at * slots, length * slots),
                     .log_envelopes = {},
                     .covered_masses = {}},
         .output = {.decisions = std::span(decided.decisions).subspan(at, length),
                    .acceptance_probabilities = part(decided.acceptance_probabilities),
                    .log_modified_ratios = part(decided.log_modified_ratios),
                    .log_ratios = part(log_ratios_),
                    .log_envelopes = part(log_envelopes_),
                    .covered_masses = part(covered_masses_)},
         .sums = &sums});
    parts.push_back(
        {.sequence_key = key, .first_position = 0, .count = static_cast<uint32_t>(length)});
    at += length;
  }
  const EvaluateParameters parameters = {
      .slots = records_.top_k, .top_k = records_.top_k, .draw = batch.draw};
  backend_.Evaluate(parameters, stretches);

  std::vector<TokenState> states(count, TokenState::kOffPolicy);
  Correct(batch, stretches, decided, states);
  AlgorithmInput input{.parts = parts,
                       .states = states,
                       .log_ratios = decided.log_modified_ratios,
                       .current_log_probs = batch.sampled_log_probs,
                       .reference_log_probs = reference_log_probs,
                       .log_importance_ratios = log_ratios_,
                       .acceptance_probabilities = decided.acceptance_probabilities,
                       .advantages = batch.advantages,
                       .draw = batch.draw};
  std::vector<float> total_variations;
  if (std::holds_alternative<DppoTopK>(arm_.algorithm)) {
    total_variations.resize(count);
    size_t first = 0;
    for (const Stretch& stretch : stretches) {
      const size_t length = stretch.output.decisions.size();
      ComputeTopKTotalVariations(parameters, stretch,
                                 std::span(total_variations).subspan(first, length));
      first += length;
    }
    input.total_variations = total_variations;
  }
  const AlgorithmOutput output{.coefficients = decided.coefficients};
  ApplyAlgorithm(arm_.algorithm, input, output);
  LimitDualClip(batch, decided);
  return decided;
}

void KernelDecisions::Correct(const MiniBatch& batch, std::span<const Stretch> stretches,
                              Decided& decided, std::vector<TokenState>& states) {
  const size_t count = states.size();
  switch (arm_.correction) {
    case Correction::kNone:
      decided.log_modified_ratios = log_ratios_;
      return;
    case Correction::kExpected:
      for (const Stretch& stretch : stretches) ReplaceByExpectedWeights(stretch);
      return;
    case Correction::kSampled:
      for (size_t i = 0; i < count; ++i) {
        if (decided.decisions[i] == Decision::kAccepted) states[i] = TokenState::kOnPolicy;
      }
      return;
    case Correction::kPositive: {
      size_t first = 0;
      for (const Stretch& stretch : stretches) {
        const size_t length = stretch.output.decisions.size();
        KeepRatiosUnlessAdvantageIsPositive(
            stretch, std::span<const float>(batch.advantages).subspan(first, length),
            /*authors_code=*/false);
        first += length;
      }
      for (size_t i = 0; i < count; ++i) {
        const bool accepted = decided.decisions[i] == Decision::kAccepted;
        if (accepted && batch.advantages[i] > 0.0f) states[i] = TokenState::kOnPolicy;
      }
      return;
    }
    case Correction::kRandom:
      for (size_t i = 0; i < count; ++i) {
        const float rate = ExpectedAcceptance({log_envelopes_[i], covered_masses_[i]});
        const bool accepted =
            Uniform(HashOf({run_seed_, 20, batch.draw, batch.responses.front(), i})) < rate;
        decided.decisions[i] = accepted ? Decision::kAccepted : Decision::kRejected;
        decided.log_modified_ratios[i] = accepted ? 0.0f : log_ratios_[i];
        if (accepted) states[i] = TokenState::kOnPolicy;
      }
      return;
  }
}

void KernelDecisions::LimitDualClip(const MiniBatch& batch, Decided& decided) const {
  for (size_t i = 0; i < decided.coefficients.size(); ++i) {
    if (batch.advantages[i] < 0.0f && Exp32(decided.log_modified_ratios[i]) > arm_.dual_clip) {
      decided.coefficients[i] = 0.0f;
    }
  }
}

}  // namespace sis::study
