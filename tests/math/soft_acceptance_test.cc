// Laws of soft acceptance, with the decisions of every backend (docs/math.md, section 7).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/decide/algorithms/algorithm.h"
#include "kernels/decide/algorithms/expected_weight.h"
#include "kernels/numerics/exp32.h"
#include "tests/conformance/backends.h"
#include "tests/conformance/policy_pairs.h"
#include "tests/conformance/positions.h"

namespace sis {
namespace {

class SoftAcceptanceTest : public BackendTest {};
SIS_INSTANTIATE_BACKENDS(SoftAcceptanceTest);

constexpr size_t kCount = 4'000;
constexpr int kTokens = 12;

// Positions whose slots hold all that the policies share. M may be below 1, where the current
// policy has some of its mass on no slot.
Positions WholeVocabularies(uint64_t seed) {
  std::mt19937_64 random(seed);
  Positions positions;
  positions.slots = kTokens;
  for (size_t i = 0; i < kCount; ++i) {
    const PolicyPair pair = RandomPolicyPair(random, kTokens);
    AppendPosition(pair, random() % pair.size(), positions);
  }
  return positions;
}

// M.
double EnvelopeAt(const Positions& positions, size_t i) {
  double log_envelope = kMinusInfinity;
  for (size_t j = i * kTokens; j < (i + 1) * kTokens; ++j) {
    log_envelope = std::max(log_envelope, static_cast<double>(positions.current_log_probs[j]) -
                                              positions.behavior_log_probs[j]);
  }
  return std::exp(log_envelope);
}

// Weights of the decided positions by the rule and by SIS alone, with the same advantage
// everywhere.
struct Weighed {
  std::vector<float> coefficients = std::vector<float>(kCount);
  std::vector<float> modified_ratios = std::vector<float>(kCount);
  std::vector<float> ratios = std::vector<float>(kCount);  // w
};

Weighed Weigh(const Positions& positions, const Results& results, bool expected, float advantage) {
  Weighed weighed;
  std::vector<TokenState> states(kCount, TokenState::kOffPolicy);
  std::vector<float> log_modified_ratios = results.log_modified_ratios;
  std::vector<float> log_importance_ratios(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    const float log_ratio =
        Flush(positions.current_sampled_log_probs[i] - positions.behavior_sampled_log_probs[i]);
    log_importance_ratios[i] = log_ratio;
    weighed.ratios[i] = Exp32(log_ratio);
    if (expected) {
      log_modified_ratios[i] = LogExpectedRatio(results.acceptance_probabilities[i], log_ratio);
    } else if (results.decisions[i] == Decision::kAccepted) {
      states[i] = TokenState::kOnPolicy;
    }
    weighed.modified_ratios[i] = Exp32(log_modified_ratios[i]);
  }
  const std::vector<SequenceRange> parts = {
      {.sequence_key = 1, .first_position = 0, .count = kCount}};
  const std::vector<float> advantages(kCount, advantage);
  const AlgorithmInput batch{.parts = parts,
                             .states = states,
                             .log_ratios = log_modified_ratios,
                             .log_importance_ratios = log_importance_ratios,
                             .acceptance_probabilities = results.acceptance_probabilities,
                             .advantages = advantages};
  ApplyAlgorithm(SoftAcceptance{}, batch, {.coefficients = weighed.coefficients});
  return weighed;
}

TEST_P(SoftAcceptanceTest, AnOutwardTokenWeighsAtMostItsImportanceRatio) {
  const Positions positions = WholeVocabularies(1);
  const Results results = Evaluate(backend(), {kTokens, 3}, 5, 0, positions);
  for (const bool expected : {false, true}) {
    int outward = 0, sis_weighs_more = 0, small_envelopes = 0;
    for (const float advantage : {-0.5f, 2.0f}) {
      const Weighed weighed = Weigh(positions, results, expected, advantage);
      for (size_t i = 0; i < kCount; ++i) {
        const float w = weighed.ratios[i];
        if (advantage > 0 ? w <= 1 : w >= 1) continue;
        ++outward;
        // Above, rounding: of two float32 exponentials.
        const double limit = w / std::min(1.0, EnvelopeAt(positions, i)) * (1 + 1e-5);
        ASSERT_LE(weighed.coefficients[i], limit) << i << ", advantage " << advantage;
        ASSERT_GE(weighed.coefficients[i], 0);
        if (w < 1) {
          ASSERT_LE(weighed.coefficients[i], results.acceptance_probabilities[i]) << i;
        }
        sis_weighs_more += weighed.modified_ratios[i] > limit;
        small_envelopes += EnvelopeAt(positions, i) < 1;
      }
    }
    EXPECT_GT(outward, kCount / 2);
    EXPECT_GT(sis_weighs_more, kCount / 50) << "SIS alone has no such law";
    EXPECT_GT(small_envelopes, 10);
  }
}

}  // namespace
}  // namespace sis
