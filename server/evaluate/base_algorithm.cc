#include "server/evaluate/base_algorithm.h"

#include <vector>

#include "kernels/numerics/sequence_key.h"
#include "server/messages/arrays.h"

namespace sis {
namespace {

TokenState StateOf(Decision decision, const EvaluateInput& input) {
  if (decision == Decision::kMasked) return TokenState::kMasked;
  const bool certified = decision == Decision::kAccepted && input.weight == v1::WEIGHT_SAMPLED;
  return certified ? TokenState::kOnPolicy : TokenState::kOffPolicy;
}

std::vector<SequenceRange> PartsOf(const std::vector<SliceRange>& slices, uint64_t run_seed) {
  std::vector<SequenceRange> parts;
  parts.reserve(slices.size());
  for (const SliceRange& slice : slices) {
    parts.push_back({.sequence_key = SequenceKey(run_seed, slice.name.attempt, slice.name.id),
                     .first_position = slice.first_position,
                     .count = slice.count,
                     .whole_sequence = slice.sequence_log_ratio_sum});
  }
  return parts;
}

}  // namespace

absl::Status AddAlgorithmOutputs(const EvaluateInput& input, uint64_t run_seed,
                                 const std::vector<SliceRange>& slices,
                                 const PositionOutput& positions, v1::EvaluateResponse& response) {
  const std::span<const Decision> decisions = positions.view.decisions;
  const std::span<const float> log_modified_ratios = positions.view.log_modified_ratios;
  const std::span<const float> sampled_log_probs = input.sampled_log_probs;
  const size_t count = decisions.size();
  const std::vector<SequenceRange> parts = PartsOf(slices, run_seed);
  std::vector<TokenState> states(count);
  for (size_t i = 0; i < count; ++i) states[i] = StateOf(decisions[i], input);

  AlgorithmInput batch{.parts = parts,
                       .states = states,
                       .log_ratios = log_modified_ratios,
                       .current_log_probs = sampled_log_probs,
                       .reference_log_probs = positions.reference_log_probs,
                       .total_variations = positions.total_variations,
                       .advantages = input.advantages,
                       .draw = input.parameters.draw};
  std::vector<float> log_ratios;
  if (input.decoupled()) {
    // SIS has compared the proximal policy with the behavior policy. The algorithm compares the
    // current policy with the proximal one, its reference. The modified ratio of SIS is a constant
    // factor.
    log_ratios.resize(count);
    for (size_t i = 0; i < count; ++i) {
      if (states[i] == TokenState::kMasked) continue;
      log_ratios[i] = Flush(input.decoupled_log_probs[i] - sampled_log_probs[i]);
    }
    batch.log_ratios = log_ratios;
    batch.log_corrections = log_modified_ratios;
    batch.current_log_probs = input.decoupled_log_probs;
    batch.reference_log_probs = sampled_log_probs;
  }
  // The ratio of the current to the behavior policy, whichever policy is the reference.
  std::vector<float> log_importance_ratios;
  if (WeighsByAcceptance(*input.algorithm)) {
    log_importance_ratios.resize(count);
    for (size_t i = 0; i < count; ++i) {
      if (states[i] == TokenState::kMasked) continue;
      log_importance_ratios[i] =
          Flush(batch.current_log_probs[i] - positions.reference_log_probs[i]);
    }
    batch.log_importance_ratios = log_importance_ratios;
    batch.acceptance_probabilities = positions.view.acceptance_probabilities;
  }

  AlgorithmOutput output;
  if (input.wants(v1::OUTPUT_SURROGATES)) {
    output.surrogates = ResizeArray<float>(*response.mutable_surrogates(), count);
  }
  if (input.wants(v1::OUTPUT_COEFFICIENTS)) {
    output.coefficients = ResizeArray<float>(*response.mutable_coefficients(), count);
  }
  std::vector<LogRatioSum> sums;
  if (std::holds_alternative<Gspo>(*input.algorithm)) {
    sums.resize(slices.size());
    output.log_ratio_sums = sums;
  }
  if (absl::Status status = CheckAdvantages(*input.algorithm, batch); !status.ok()) return status;
  ApplyAlgorithm(*input.algorithm, batch, output);
  for (const LogRatioSum& sum : sums) {
    v1::LogRatioSum& message = *response.add_log_ratio_sums();
    message.set_log_ratio(sum.log_ratio);
    message.set_positions(sum.positions);
  }
  return absl::OkStatus();
}

}  // namespace sis
