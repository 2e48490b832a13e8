// Rules that only the study tries, in the place of an algorithm: those of others as their papers
// have them, and ideas that recorded sets allow. The service has none of them; docs/algorithms.md,
// "More rules", has what came of them. TV and KL are over V_K, all else as one event.
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
  std::span<const uint16_t> ranks;          // [n], of the sampled token; K or more: outside
  std::span<const float> acceptance_probabilities;  // [n]: a
  std::span<const float> log_envelopes;             // [n]: log M
  std::span<const float> advantages;                // [n]: A
  std::span<const double> uniforms;                 // [n], in (0, 1)

  size_t size() const { return sampled_current.size(); }
};

struct Explored {
  enum class Kind {
    // Jackpot (arXiv 2602.06107, sections 3.1, 4.1, 4.4): accept with min(1, w / parameter).
    // Accepted tokens are distributed as min(q, p / lambda) / Z, so they weigh Z max(lambda, w),
    // here limited to 2 and without a clip, for the paper names no limit. Z is a sum over the set,
    // scaled so that its mean is the accepted share of the batch. The paper sums over both
    // policies' sets; where the behaviour's ends, q is not recorded, there as here.
    kBudgetedRejection,
    kAcceptanceBudget,  // the same; lambda is such that the batch accepts a share of the parameter
    // arXiv 2602.10693: with W the ratio of the whole response its tokens weigh e^l W^k e^(-l W);
    // k = 2 and l = 3 where A >= 0, else 3 and 2.
    kVespo,
    // arXiv 2606.09821, eq. 8: the gradient of w A - abs(A) q (w - 1)^2 / (2 delta) weighs
    // w (1 - sign(A) (p - q) / delta). Parameter: delta. With the paper's, 12.5, the second term is
    // at most 0.08.
    kDrpo,
    // DeepSeek-V3.2 (arXiv 2512.02556, eq. 9): clipped GRPO without the responses of a negative
    // advantage whose mean of -log w is above the parameter.
    kResponseMask,

    // min(w, 1), times a factor where the token moved the way its advantage pushes.
    // max(0, 1 - TV / parameter). The mean of abs(w - 1) under q is 2 TV: the sampled ratio is one
    // draw of a distance that the set has itself. A token whose ratio is extreme by chance is let
    // go on where the position has hardly moved, and held where it has.
    kTotalVariation,
    // e^(-KL(q, p) / parameter): unlike TV it grows without bound where p gives up what q samples.
    kKlDivergence,
    // min(1, 1 / M). The mean of a under q is C / M, with C the mass of p on V_K: a without what it
    // owes to the token that was drawn.
    kInverseEnvelope,
    // C a + (1 - C) min(w, 1 / w). a is certified on the set only; by as much of p as lies
    // behind it, trust the rule that needs no set.
    kTailGuard,
    // min(1, w / m) in V_K, 0 outside: a with an envelope that gives up the parameter. M is a
    // maximum, so one improbable token whose ratio has multiplied makes a small for all of its
    // position. Accepting with min(1, w / m) leaves the law min(m q, p), normalised. Of p it
    // cuts off e = sum over V_K of max(0, p - m q), so it lies within a total variation of e /
    // p(V_K) of p given V_K, and no rule that accepts as many comes nearer (Verine et al.,
    // 2024). m is the least of 1 or more with e <= parameter. e is the largest p(S) - m q(S) of
    // all subsets S of V_K, and the largest is of those tokens whose ratio is above some bound:
    // so m is 1, or the largest (p(S) - parameter) / q(S) of such subsets. It depends on the
    // prefix alone, as M does. With 0 it is M, if that is 1 or more; where the set shows no more
    // than the parameter of total variation it is 1, and a token that rose isn't damped; with 1
    // it is 1 everywhere.
    kBudgetedEnvelope,

    // Of all tokens.
    // min(w, 1) (1 - TV): 1 - TV is the largest probability with which a draw of q can be made one
    // of p (a maximal coupling), and a position counts by that share.
    kPositionOverlap,
    // w^beta, times a where outward, with the largest beta <= 1 that keeps (sum w^beta)^2 >=
    // parameter n sum w^(2 beta): the variance is at most 1 / parameter of even weights', and
    // ratios are bent only in batches that need it.
    kEffectiveSampleSize,
    // Clipped GRPO where the batch's mean TV is at most the parameter, else damped truncation: an
    // engine that agrees needs no damping.
    kByTotalVariation,
  };

  Kind kind;
  double parameter = 0.0;

  // The coefficients [n]: the derivative of a token's objective is coefficient * A * grad log p.
  void Apply(const ExploredTokens& tokens, std::span<float> coefficients) const;
};

}  // namespace sis::study
