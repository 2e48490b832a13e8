#include "kernels/decide/algorithms/algorithm.h"

#include <cmath>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace sis {
namespace {

template <typename T, typename... Others>
inline constexpr bool kIsOneOf = (std::is_same_v<T, Others> || ...);

// Weighs the ratio of every token with a constant, instead of differentiating through a clip.
template <typename Rule>
inline constexpr bool kCorrects = kIsOneOf<Rule, Tis, IcePop>;

// The two outputs of one token.
struct Weights {
  float surrogate;
  float coefficient;
};

template <typename Rule>
Weights WeighTwoPolicies(const Rule& rule, const Token& token, float advantage) {
  if constexpr (kCorrects<Rule>) {
    const float weight = rule.Correct(token.ratio);
    return {weight, weight};
  } else {
    return {rule.Surrogate(token), rule.Coefficient(token, advantage)};
  }
}

template <typename Rule>
Weights WeighThreePolicies(const Rule& rule, const Token& token, float correction,
                           float advantage) {
  if constexpr (kCorrects<Rule>) {
    const float weight = rule.Correct(correction);
    return {RatioProduct(weight, rule.clip().Surrogate(token.ratio)),
            RatioProduct(weight, rule.clip().Coefficient(token.ratio, advantage))};
  } else {
    return {RatioProduct(correction, rule.Surrogate(token)),
            RatioProduct(correction, rule.Coefficient(token, advantage))};
  }
}

float AtOrZero(std::span<const float> array, size_t i) { return array.empty() ? 0.0f : array[i]; }

template <typename Rule>
Weights Weigh(const Rule& rule, const AlgorithmInput& batch, size_t i) {
  const bool three_policies = !batch.log_corrections.empty();
  if (batch.states[i] == TokenState::kMasked) return {0.0f, 0.0f};
  if (batch.states[i] == TokenState::kOnPolicy && !three_policies) return {1.0f, 1.0f};
  const Token token{.ratio = Exp32(batch.log_ratios[i]),
                    .current_log_prob = AtOrZero(batch.current_log_probs, i),
                    .reference_log_prob = AtOrZero(batch.reference_log_probs, i),
                    .total_variation = AtOrZero(batch.total_variations, i)};
  const float advantage = AtOrZero(batch.advantages, i);
  if (!three_policies) return WeighTwoPolicies(rule, token, advantage);
  return WeighThreePolicies(rule, token, Exp32(batch.log_corrections[i]), advantage);
}

// Algorithms that look at one token at a time.
template <typename Rule>
void Apply(const Rule& rule, const AlgorithmInput& batch, const AlgorithmOutput& output) {
  for (size_t i = 0; i < batch.states.size(); ++i) {
    const Weights weights = Weigh(rule, batch, i);
    if (!output.surrogates.empty()) output.surrogates[i] = weights.surrogate;
    if (!output.coefficients.empty()) output.coefficients[i] = weights.coefficient;
  }
}

void Apply(const Gspo& gspo, const AlgorithmInput& batch, const AlgorithmOutput& output) {
  gspo.Apply(batch, output);
}

void Apply(const ClipCov& clip_cov, const AlgorithmInput& batch, const AlgorithmOutput& output) {
  clip_cov.Apply(batch, output);
}

void Apply(const SoftAcceptance& soft_acceptance, const AlgorithmInput& batch,
           const AlgorithmOutput& output) {
  soft_acceptance.Apply(batch, output);
}

void Apply(const DampedTruncation& damped_truncation, const AlgorithmInput& batch,
           const AlgorithmOutput& output) {
  damped_truncation.Apply(batch, output);
}

absl::Status CheckLength(absl::string_view field, size_t length, size_t expected) {
  if (length == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", length, " elements, must be ", expected));
}

absl::Status CheckLengths(const AlgorithmInput& batch, const AlgorithmOutput& output) {
  size_t count = 0;
  for (const SequenceStretch& part : batch.parts) count += part.count;
  absl::Status status = CheckLength("states", batch.states.size(), count);
  status.Update(CheckLength("log_ratios", batch.log_ratios.size(), count));
  const auto optional = [&](absl::string_view field, size_t length, size_t expected) {
    if (length != 0) status.Update(CheckLength(field, length, expected));
  };
  optional("log_corrections", batch.log_corrections.size(), count);
  optional("current_log_probs", batch.current_log_probs.size(), count);
  optional("reference_log_probs", batch.reference_log_probs.size(), count);
  optional("total_variations", batch.total_variations.size(), count);
  optional("log_importance_ratios", batch.log_importance_ratios.size(), count);
  optional("acceptance_probabilities", batch.acceptance_probabilities.size(), count);
  optional("advantages", batch.advantages.size(), count);
  optional("surrogates", output.surrogates.size(), count);
  optional("coefficients", output.coefficients.size(), count);
  optional("log_ratio_sums", output.log_ratio_sums.size(), batch.parts.size());
  return status;
}

absl::Status CheckNeeds(const Algorithm& algorithm, const AlgorithmInput& batch,
                        const AlgorithmOutput& output) {
  if (batch.states.empty()) return absl::OkStatus();
  const auto need = [&](absl::string_view field, bool there) {
    if (there) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": unset, but ", std::string(AlgorithmName(algorithm)), " needs them"));
  };
  absl::Status status;
  if (!output.coefficients.empty()) status.Update(need("advantages", !batch.advantages.empty()));
  if (std::holds_alternative<DppoTopK>(algorithm)) {
    status.Update(need("total_variations", !batch.total_variations.empty()));
  }
  if (std::holds_alternative<DppoBinary>(algorithm)) {
    status.Update(need("current_log_probs", !batch.current_log_probs.empty()));
    status.Update(need("reference_log_probs", !batch.reference_log_probs.empty()));
  }
  if (std::holds_alternative<ClipCov>(algorithm)) {
    status.Update(need("advantages", !batch.advantages.empty()));
    status.Update(need("current_log_probs", !batch.current_log_probs.empty()));
  }
  if (WeighsByAcceptance(algorithm)) {
    status.Update(need("advantages", !batch.advantages.empty()));
    status.Update(need("log_importance_ratios", !batch.log_importance_ratios.empty()));
    status.Update(need("acceptance_probabilities", !batch.acceptance_probabilities.empty()));
  }
  if (!output.log_ratio_sums.empty() && !std::holds_alternative<Gspo>(algorithm)) {
    status.Update(absl::InvalidArgumentError("log_ratio_sums: only gspo has them"));
  }
  return status;
}

// The largest advantage: what a fixed-point sum holds.
constexpr float kLargestAdvantage = 64.0f;

absl::Status CheckAdvantages(const AlgorithmInput& batch, float limit) {
  for (size_t i = 0; i < batch.advantages.size(); ++i) {
    if (batch.states[i] == TokenState::kMasked) continue;
    const float advantage = batch.advantages[i];
    if (std::abs(advantage) <= limit) continue;
    return absl::InvalidArgumentError(absl::StrCat("advantages: element ", i, ": ", advantage,
                                                   ", must be in [", -limit, ", ", limit, "]"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view AlgorithmName(const Algorithm& algorithm) {
  struct Name {
    std::string_view operator()(const ImportanceSampling&) { return "importance_sampling"; }
    std::string_view operator()(const NoCorrection&) { return "no_correction"; }
    std::string_view operator()(const Grpo&) { return "grpo"; }
    std::string_view operator()(const Dapo&) { return "dapo"; }
    std::string_view operator()(const Gspo&) { return "gspo"; }
    std::string_view operator()(const Cispo&) { return "cispo"; }
    std::string_view operator()(const DppoTopK&) { return "dppo_top_k"; }
    std::string_view operator()(const DppoBinary&) { return "dppo_binary"; }
    std::string_view operator()(const ClipCov&) { return "clip_cov"; }
    std::string_view operator()(const Tis&) { return "tis"; }
    std::string_view operator()(const IcePop&) { return "ice_pop"; }
    std::string_view operator()(const SoftAcceptance&) { return "soft_acceptance"; }
    std::string_view operator()(const DampedTruncation&) { return "damped_truncation"; }
  };
  return std::visit(Name(), algorithm);
}

bool WeighsByAcceptance(const Algorithm& algorithm) {
  return std::holds_alternative<SoftAcceptance>(algorithm) ||
         std::holds_alternative<DampedTruncation>(algorithm);
}

absl::Status ValidateAlgorithm(const Algorithm& algorithm, const AlgorithmInput& batch,
                               const AlgorithmOutput& output) {
  absl::Status status = std::visit([](const auto& rule) { return rule.Validate(); }, algorithm);
  if (!status.ok()) return status;
  status = CheckLengths(batch, output);
  if (!status.ok()) return status;
  status = CheckNeeds(algorithm, batch, output);
  if (!status.ok()) return status;
  const bool summed = std::holds_alternative<ClipCov>(algorithm);
  return CheckAdvantages(batch, summed ? kLargestAdvantage : kNoUpperBound);
}

void ApplyAlgorithm(const Algorithm& algorithm, const AlgorithmInput& batch,
                    const AlgorithmOutput& output) {
  std::visit([&](const auto& rule) { Apply(rule, batch, output); }, algorithm);
}

}  // namespace sis
