// Rules that only the study tries, in the place of an algorithm: those of others as their papers
// have them, and ideas that recorded sets allow. docs/algorithms.md has the derivations, in "More
// rules". The service has none of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sis::study {

// What is known of n tokens, response after response. Log-probs in nats; p: current, q: behaviour,
// w = p / q of the sampled token.
struct ExploredTokens {
  std::span<const size_t> lengths;          // of the responses: n together
  size_t top_k;                             // K
  std::span<const float> behavior;          // [n, K], the recorded set; -inf: an unused slot
  std::span<const float> current;           // [n, K], at the same ids
  std::span<const float> sampled_behavior;  // [n]
  std::span<const float> sampled_current;   // [n]
  std::span<const uint8_t> ranks;           // [n], of the sampled token; K or more: outside
  std::span<const float> acceptance_probabilities;  // [n]: a
  std::span<const float> log_envelopes;             // [n]: log M
  std::span<const float> advantages;                // [n]: A
  std::span<const double> uniforms;                 // [n], in (0, 1)

  size_t size() const { return sampled_current.size(); }
};

struct Explored {
  enum class Kind {
    // Of others.
    kBudgetedRejection,  // Jackpot (arXiv 2602.06107); parameter: lambda
    kAcceptanceBudget,   // the same; parameter: the batch's mean acceptance, from which lambda
                         // follows
    kVespo,              // arXiv 2602.10693, with its k and lambda
    kDrpo,               // arXiv 2606.09821; parameter: delta
    // DeepSeek-V3.2 (arXiv 2512.02556, eq. 9): clipped GRPO without the responses of a negative
    // advantage whose mean of -log w is above the parameter
    kResponseMask,
    // min(w, 1), times a factor where the token moved the way its advantage pushes.
    kTotalVariation,   // max(0, 1 - TV / parameter)
    kKlDivergence,     // e^(-KL(q, p) / parameter)
    kInverseEnvelope,  // min(1, 1 / M)
    kTailGuard,        // a as far as the set covers p, min(w, 1 / w) for the rest
    // Of all tokens.
    kPositionOverlap,      // min(w, 1) (1 - TV)
    kEffectiveSampleSize,  // w^beta, a where outward; parameter: the least effective share of
                           // tokens
    kByTotalVariation,     // clipped GRPO up to this mean TV of the batch, then damped truncation
  };

  Kind kind;
  double parameter = 0.0;

  // The coefficients [n]: the derivative of a token's objective is coefficient * A * grad log p.
  void Apply(const ExploredTokens& tokens, std::span<float> coefficients) const;
};

}  // namespace sis::study
