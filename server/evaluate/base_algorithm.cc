#include "server/evaluate/base_algorithm.h"

#include "kernels/numerics/sequence_key.h"
#include "server/wire/arrays.h"

namespace sis {
namespace {

Algorithm FromMessage(const v1::Algorithm& message) {
  switch (message.algorithm_case()) {
    case v1::Algorithm::kImportanceSampling:
      return ImportanceSampling{};
    case v1::Algorithm::kNoCorrection:
      return NoCorrection{};
    case v1::Algorithm::kGrpo: {
      Grpo grpo;
      if (message.grpo().has_epsilon()) grpo.epsilon = message.grpo().epsilon();
      return grpo;
    }
    case v1::Algorithm::kDapo: {
      Dapo dapo;
      if (message.dapo().has_epsilon_low()) dapo.epsilon_low = message.dapo().epsilon_low();
      if (message.dapo().has_epsilon_high()) dapo.epsilon_high = message.dapo().epsilon_high();
      return dapo;
    }
    case v1::Algorithm::kGspo: {
      Gspo gspo;
      if (message.gspo().has_epsilon_low()) gspo.epsilon_low = message.gspo().epsilon_low();
      if (message.gspo().has_epsilon_high()) gspo.epsilon_high = message.gspo().epsilon_high();
      return gspo;
    }
    case v1::Algorithm::kCispo: {
      Cispo cispo;
      if (message.cispo().has_epsilon_high()) cispo.epsilon_high = message.cispo().epsilon_high();
      return cispo;
    }
    case v1::Algorithm::kDppoTopK: {
      DppoTopK dppo;
      if (message.dppo_top_k().has_threshold()) dppo.threshold = message.dppo_top_k().threshold();
      return dppo;
    }
    case v1::Algorithm::kDppoBinary: {
      DppoBinary dppo;
      if (message.dppo_binary().has_threshold()) dppo.threshold = message.dppo_binary().threshold();
      return dppo;
    }
    case v1::Algorithm::kClipCov: {
      ClipCov clip_cov;
      const v1::Algorithm::ClipCov& parameters = message.clip_cov();
      if (parameters.has_lower()) clip_cov.lower = parameters.lower();
      if (parameters.has_upper()) clip_cov.upper = parameters.upper();
      if (parameters.has_fraction()) clip_cov.fraction = parameters.fraction();
      return clip_cov;
    }
    case v1::Algorithm::kTis: {
      Tis tis;
      const v1::Algorithm::Tis& parameters = message.tis();
      if (parameters.has_truncation()) tis.truncation = parameters.truncation();
      if (parameters.has_epsilon_low()) tis.epsilon_low = parameters.epsilon_low();
      if (parameters.has_epsilon_high()) tis.epsilon_high = parameters.epsilon_high();
      return tis;
    }
    case v1::Algorithm::kIcePop: {
      IcePop ice_pop;
      const v1::Algorithm::IcePop& parameters = message.ice_pop();
      if (parameters.has_alpha()) ice_pop.alpha = parameters.alpha();
      if (parameters.has_beta()) ice_pop.beta = parameters.beta();
      if (parameters.has_epsilon_low()) ice_pop.epsilon_low = parameters.epsilon_low();
      if (parameters.has_epsilon_high()) ice_pop.epsilon_high = parameters.epsilon_high();
      return ice_pop;
    }
    case v1::Algorithm::ALGORITHM_NOT_SET:
      break;
  }
  return ImportanceSampling{};
}

TokenState StateOf(Decision decision, WeightKind weight) {
  if (decision == Decision::kMasked) return TokenState::kMasked;
  const bool certified = decision == Decision::kAccepted && weight == WeightKind::kSampled;
  return certified ? TokenState::kOnPolicy : TokenState::kOffPolicy;
}

std::vector<SequencePart> PartsOf(const std::vector<SliceRange>& slices, uint64_t run_seed) {
  std::vector<SequencePart> parts;
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

absl::StatusOr<Algorithm> ParseAlgorithm(const v1::Algorithm& message) {
  if (message.algorithm_case() == v1::Algorithm::ALGORITHM_NOT_SET) {
    return absl::InvalidArgumentError("algorithm: none of its fields is set");
  }
  Algorithm algorithm = FromMessage(message);
  absl::Status status = std::visit([](const auto& rule) { return rule.Validate(); }, algorithm);
  if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat("algorithm.", status.message()));
  return algorithm;
}

absl::Status AddAlgorithmOutputs(const EvaluateInput& input, uint64_t run_seed,
                                 const std::vector<SliceRange>& slices,
                                 const EvaluatedPositions& positions,
                                 v1::EvaluateResponse& response) {
  const size_t count = positions.decisions.size();
  const std::vector<SequencePart> parts = PartsOf(slices, run_seed);
  std::vector<TokenState> states(count);
  for (size_t i = 0; i < count; ++i) states[i] = StateOf(positions.decisions[i], input.weight);

  BatchView batch{.parts = parts,
                  .states = states,
                  .log_ratios = positions.log_modified_ratios,
                  .current_log_probs = positions.sampled_log_probs,
                  .reference_log_probs = positions.reference_log_probs,
                  .total_variations = positions.total_variations,
                  .advantages = input.advantages,
                  .draw = input.parameters.draw};
  std::vector<float> log_ratios;
  if (input.decoupled()) {
    log_ratios.resize(count);
    for (size_t i = 0; i < count; ++i) {
      if (states[i] == TokenState::kMasked) continue;
      log_ratios[i] = Flush(input.decoupled_log_probs[i] - positions.sampled_log_probs[i]);
    }
    batch.log_ratios = log_ratios;
    batch.log_corrections = positions.log_modified_ratios;
    batch.current_log_probs = input.decoupled_log_probs;
    batch.reference_log_probs = positions.sampled_log_probs;
  }

  AlgorithmOutput output;
  if (input.wanted.surrogates) {
    output.surrogates = ResizeArray<float>(*response.mutable_surrogates(), count);
  }
  if (input.wanted.coefficients) {
    output.coefficients = ResizeArray<float>(*response.mutable_coefficients(), count);
  }
  std::vector<LogRatioSum> sums;
  if (std::holds_alternative<Gspo>(*input.algorithm)) {
    sums.resize(slices.size());
    output.log_ratio_sums = sums;
  }
  absl::Status status = ValidateAlgorithm(*input.algorithm, batch, output);
  if (!status.ok()) return status;
  ApplyAlgorithm(*input.algorithm, batch, output);
  for (const LogRatioSum& sum : sums) {
    v1::LogRatioSum& message = *response.add_log_ratio_sums();
    message.set_log_ratio(sum.log_ratio);
    message.set_positions(sum.positions);
  }
  return absl::OkStatus();
}

}  // namespace sis
