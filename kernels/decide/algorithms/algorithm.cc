#include "kernels/decide/algorithms/algorithm.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"

namespace sis {
namespace {

template <typename Rule>
constexpr bool kByAcceptance = requires(Rule rule) {
  rule.Weight(0.0f, AcceptanceToken());
};
template <typename Rule>
constexpr bool kCorrects = requires(Rule rule) {
  rule.Correct(0.0f);
};
template <typename Rule>
constexpr bool kIgnoresAdvantages = requires(Rule rule) {
  rule.Weigh(Token());
};

// Returns the weights of an unmasked token. For rules that weigh each token separately.
template <typename Rule>
Weights WeightsOf(const Rule& rule, const AlgorithmInput& batch, size_t i) {
  const float advantage = AtOrZero(batch.advantages, i);
  const Token token{.ratio = Exp32(batch.log_ratios[i]),
                    .current_log_prob = AtOrZero(batch.current_log_probs, i),
                    .reference_log_prob = AtOrZero(batch.reference_log_probs, i),
                    .total_variation = AtOrZero(batch.total_variations, i)};
  const float correction = batch.Correction(i);
  if constexpr (kByAcceptance<Rule>) {
    const float weight = rule.Weight(
        RatioProduct(correction, token.ratio),
        {Exp32(batch.log_importance_ratios[i]), batch.acceptance_probabilities[i], advantage});
    return {weight, weight};
  } else {
    const bool exempt = batch.states[i] == TokenState::kOnPolicy && !batch.three_policies();
    if (exempt) return {1.0f, 1.0f};
    if constexpr (kCorrects<Rule>) {
      if (batch.three_policies()) {
        return RatioProduct(rule.Correct(correction), rule.clip().Weigh(token.ratio, advantage));
      }
      const float weight = rule.Correct(token.ratio);
      return {weight, weight};
    } else if constexpr (kIgnoresAdvantages<Rule>) {
      return RatioProduct(correction, rule.Weigh(token));
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

template <typename... Rules>
std::vector<Algorithm> DefaultsOf(const std::variant<Rules...>&) {
  return {Rules()...};
}

// The largest advantage that a fixed-point sum can represent.
constexpr float kLargestAdvantage = 64.0f;

}  // namespace

std::vector<Algorithm> AllAlgorithms() { return DefaultsOf(Algorithm()); }

std::string_view AlgorithmName(const Algorithm& algorithm) {
  return std::visit([](const auto& rule) { return rule.kName; }, algorithm);
}

std::vector<Parameter> ParametersOf(Algorithm& algorithm) {
  return std::visit([](auto& rule) { return rule.Parameters(); }, algorithm);
}

absl::Status CheckParameters(Algorithm algorithm) {
  for (const Parameter& parameter : ParametersOf(algorithm)) {
    const std::string name =
        std::string(AlgorithmName(algorithm)) + "." + std::string(parameter.name);
    absl::Status status = CheckRange(name, *parameter.value, parameter.low, parameter.high);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

bool WeighsByAcceptance(const Algorithm& algorithm) {
  return std::visit([]<typename Rule>(const Rule&) { return kByAcceptance<Rule>; }, algorithm);
}

bool ReadsTotalVariations(const Algorithm& algorithm) {
  return std::visit(
      [](const auto& rule) {
        return requires { rule.kReadsTotalVariations; };
      },
      algorithm);
}

bool ReadsAdvantages(const Algorithm& algorithm, bool three_policies) {
  return std::visit(
      [&]<typename Rule>(const Rule&) {
        return kCorrects<Rule> ? three_policies : !kIgnoresAdvantages<Rule>;
      },
      algorithm);
}

absl::Status CheckAdvantages(const Algorithm& algorithm, const AlgorithmInput& batch) {
  const bool sums_them = std::holds_alternative<ClipCov>(algorithm);
  const bool needs_them = sums_them || WeighsByAcceptance(algorithm);
  if (needs_them && batch.advantages.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "advantages: unset, but ", std::string(AlgorithmName(algorithm)), " needs them"));
  }
  const float limit = sums_them ? kLargestAdvantage : kNoUpperBound;
  for (size_t i = 0; i < batch.advantages.size(); ++i) {
    if (batch.states[i] == TokenState::kMasked) continue;
    const float advantage = batch.advantages[i];
    if (std::abs(advantage) <= limit) continue;
    return absl::InvalidArgumentError(absl::StrCat("advantages: element ", i, ": ", advantage,
                                                   ", must be in [", -limit, ", ", limit, "]"));
  }
  return absl::OkStatus();
}

void ApplyAlgorithm(const Algorithm& algorithm, const AlgorithmInput& batch,
                    const AlgorithmOutput& output) {
  std::visit([&](const auto& rule) { Apply(rule, batch, output); }, algorithm);
}

}  // namespace sis
