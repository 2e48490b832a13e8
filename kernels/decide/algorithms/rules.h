// The rules of the base algorithms (docs/algorithms.md).
//
// A rule has the name of its field of v1::Algorithm, the parameters of that field's message, and
// one of
//  - Weigh(token): the coefficient is independent of the advantage;
//  - Weigh(token, advantage);
//  - Correct and clip: with three policies Correct limits proximal / behaviour, and clip is applied
//    to current / proximal as in GRPO. With two policies Correct limits the ratio;
//  - Weight, by the acceptance probability (docs/math.md, section 7);
//  - Apply: the weight of a token depends on other tokens.
// algorithm.cc applies it. "The paper" is Li et al. (docs/math.md). Values that no comment explains
// are the authors'.
#pragma once

#include <string_view>
#include <variant>
#include <vector>

#include "kernels/decide/algorithms/clip_cov.h"
#include "kernels/decide/algorithms/gspo.h"
#include "kernels/decide/algorithms/parameter.h"
#include "kernels/decide/algorithms/ratio_clip.h"
#include "kernels/decide/algorithms/token.h"
#include "kernels/numerics/exp32.h"

namespace sis {

// Plain importance sampling on the modified ratio: g(w) = w.
struct ImportanceSampling {
  static constexpr std::string_view kName = "importance_sampling";

  std::vector<Parameter> Parameters() { return {}; }
  Weights Weigh(const Token& token) const { return {token.ratio, token.ratio}; }
};

// As if every token were on-policy: g(w) = 1 (the paper's "w/o IS", tab:trick).
struct NoCorrection {
  static constexpr std::string_view kName = "no_correction";

  std::vector<Parameter> Parameters() { return {}; }
  Weights Weigh(const Token& /*token*/) const { return {1.0f, 1.0f}; }
};

// GRPO (Shao et al., 2024): one bound, as in the paper's eq:grpo.
struct Grpo {
  static constexpr std::string_view kName = "grpo";
  float epsilon = 0.2f;  // the paper's tab:hparams_math

  std::vector<Parameter> Parameters() { return {{"epsilon", &epsilon, 0, 1}}; }
  Weights Weigh(const Token& token, float advantage) const {
    return RatioClip{epsilon, epsilon}.Weigh(token.ratio, advantage);
  }
};

// DAPO (Yu et al., 2025): a higher upper bound.
struct Dapo {
  static constexpr std::string_view kName = "dapo";
  float epsilon_low = 0.2f;  // both from the paper's tab:hparams_math
  float epsilon_high = 0.28f;

  std::vector<Parameter> Parameters() {
    return {{"epsilon_low", &epsilon_low, 0, 1}, {"epsilon_high", &epsilon_high, 0, kNoUpperBound}};
  }
  Weights Weigh(const Token& token, float advantage) const {
    return RatioClip{epsilon_low, epsilon_high}.Weigh(token.ratio, advantage);
  }
};

// CISPO (Chen et al., 2025, MiniMax-M1): the ratio with an upper limit, so that no token loses its
// gradient.
struct Cispo {
  static constexpr std::string_view kName = "cispo";
  // The authors tuned it and give no value; 0.2 is the default of verl's clip_ratio_high.
  float epsilon_high = 0.2f;

  std::vector<Parameter> Parameters() {
    return {{"epsilon_high", &epsilon_high, 0, kNoUpperBound}};
  }
  Weights Weigh(const Token& token) const {
    const float largest = 1.0f + epsilon_high;
    const float weight = token.ratio < largest ? token.ratio : largest;
    return {weight, weight};
  }
};

// The trust region of DPPO (Qi et al., 2026, "Rethinking the trust region in LLM reinforcement
// learning"): drops a token's update if the total variation of the position's distributions is too
// large and the update would increase it.
struct TrustRegion {
  float threshold;

  Weights Weigh(float ratio, float total_variation, float advantage) const {
    const bool outside = total_variation > threshold;
    // The surrogate is the symmetric indicator of the paper's tab:trick. The coefficient follows
    // the authors' definition, which keeps updates that lead back into the region.
    return {outside ? 0.0f : ratio, outside && IsOutward(ratio, advantage) ? 0.0f : ratio};
  }
};

// DPPO with the total variation over V_k, the sampled token and everything else.
struct DppoTopK {
  static constexpr std::string_view kName = "dppo_top_k";
  static constexpr bool kReadsTotalVariations = true;
  float threshold = 0.15f;  // delta; the authors' value for the binary variant

  std::vector<Parameter> Parameters() { return {{"threshold", &threshold, 0, 1}}; }
  Weights Weigh(const Token& token, float advantage) const {
    return TrustRegion{threshold}.Weigh(token.ratio, token.total_variation, advantage);
  }
};

// DPPO with the total variation over {y, everything else}. It needs no recorded set.
struct DppoBinary {
  static constexpr std::string_view kName = "dppo_binary";
  float threshold = 0.15f;  // delta, from the authors' recipe

  // Returns |p(y) - q(y)|.
  static float TotalVariation(float current_log_prob, float reference_log_prob) {
    const float difference = Exp32(current_log_prob) - Exp32(reference_log_prob);
    return difference < 0.0f ? -difference : difference;
  }

  std::vector<Parameter> Parameters() { return {{"threshold", &threshold, 0, 1}}; }
  Weights Weigh(const Token& token, float advantage) const {
    return TrustRegion{threshold}.Weigh(
        token.ratio, TotalVariation(token.current_log_prob, token.reference_log_prob), advantage);
  }
};

// Truncated importance sampling (Yao et al., 2025, "Your efficient RL framework secretly brings you
// off-policy RL training"): min(w, C).
struct Tis {
  static constexpr std::string_view kName = "tis";
  float truncation = 2.0f;  // C
  float epsilon_low = 0.2f;
  float epsilon_high = 0.2f;

  std::vector<Parameter> Parameters() {
    return {{"truncation", &truncation, 1, kNoUpperBound},
            {"epsilon_low", &epsilon_low, 0, 1},
            {"epsilon_high", &epsilon_high, 0, kNoUpperBound}};
  }
  float Correct(float correction) const {
    return correction < truncation ? correction : truncation;
  }
  RatioClip clip() const { return {epsilon_low, epsilon_high}; }
};

// IcePop (Ling team, 2025): tokens whose ratio is outside [alpha, beta] have weight 0, others w.
struct IcePop {
  static constexpr std::string_view kName = "ice_pop";
  float alpha = 0.5f;
  float beta = 5.0f;
  float epsilon_low = 0.2f;
  float epsilon_high = 0.2f;

  std::vector<Parameter> Parameters() {
    return {{"alpha", &alpha, 0, 1},
            {"beta", &beta, 1, kNoUpperBound},
            {"epsilon_low", &epsilon_low, 0, 1},
            {"epsilon_high", &epsilon_high, 0, kNoUpperBound}};
  }
  float Correct(float correction) const {
    return correction >= alpha && correction <= beta ? correction : 0.0f;
  }
  RatioClip clip() const { return {epsilon_low, epsilon_high}; }
};

// Input of acceptance weights in addition to the modified ratio.
struct AcceptanceToken {
  float importance_ratio;  // current / behaviour, unmodified, with three policies too
  float acceptance_probability;
  float advantage;

  // Returns the acceptance probability if the token has already moved in the direction of its
  // advantage, otherwise 1. There is no clip: the result is a constant weight of log p. On-policy
  // tokens are not exempt.
  float Factor() const {
    return IsOutward(importance_ratio, advantage) ? acceptance_probability : 1.0f;
  }
};

// Our soft acceptance: applied to the modified ratio.
struct SoftAcceptance {
  static constexpr std::string_view kName = "soft_acceptance";

  std::vector<Parameter> Parameters() { return {}; }
  float Weight(float modified_ratio, const AcceptanceToken& token) const {
    return modified_ratio * token.Factor();
  }
};

// Our damped truncation: applied to the importance ratio, truncated at 1. It is deterministic and
// ignores decisions.
struct DampedTruncation {
  static constexpr std::string_view kName = "damped_truncation";

  std::vector<Parameter> Parameters() { return {}; }
  float Weight(float /*modified_ratio*/, const AcceptanceToken& token) const {
    return (token.importance_ratio < 1.0f ? token.importance_ratio : 1.0f) * token.Factor();
  }
};

// An algorithm with its parameters.
using Algorithm = std::variant<ImportanceSampling, NoCorrection, Grpo, Dapo, Gspo, Cispo, DppoTopK,
                               DppoBinary, ClipCov, Tis, IcePop, SoftAcceptance, DampedTruncation>;

}  // namespace sis
