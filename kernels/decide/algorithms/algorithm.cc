#include "kernels/decide/algorithms/algorithm.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace sis {
namespace {

// Of a token that is not masked. Most rules look at one token at a time.
template <typename Rule>
Weights WeightsOf(const Rule& rule, const AlgorithmInput& batch, size_t i) {
  const float advantage = AtOrZero(batch.advantages, i);
  const Token token{.ratio = Exp32(batch.log_ratios[i]),
                    .current_log_prob = AtOrZero(batch.current_log_probs, i),
                    .reference_log_prob = AtOrZero(batch.reference_log_probs, i),
                    .total_variation = AtOrZero(batch.total_variations, i)};
  const float correction = batch.Correction(i);
  if constexpr (requires { rule.Weight(0.0f, AcceptanceToken()); }) {
    const float weight = rule.Weight(
        RatioProduct(correction, token.ratio),
        {Exp32(batch.log_importance_ratios[i]), batch.acceptance_probabilities[i], advantage});
    return {weight, weight};
  } else {
    const bool exempt = batch.states[i] == TokenState::kOnPolicy && !batch.three_policies();
    if (exempt) return {1.0f, 1.0f};
    if constexpr (requires { rule.Correct(0.0f); }) {
      if (batch.three_policies()) {
        return RatioProduct(rule.Correct(correction), rule.clip().Weigh(token.ratio, advantage));
      }
      const float weight = rule.Correct(token.ratio);
      return {weight, weight};
    } else {
      return RatioProduct(correction, rule.Weigh(token, advantage));
    }
  }
}

template <typename Rule>
void Apply(const Rule& rule, const AlgorithmInput& batch, const AlgorithmOutput& output) {
  if constexpr (requires { rule.Apply(batch, output); }) {
    rule.Apply(batch, output);
  } else {
    for (size_t i = 0; i < batch.states.size(); ++i) {
      const bool masked = batch.states[i] == TokenState::kMasked;
      output.Store(i, masked ? Weights{0.0f, 0.0f} : WeightsOf(rule, batch, i));
    }
  }
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
  return std::visit([](const auto& rule) { return rule.kName; }, algorithm);
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
