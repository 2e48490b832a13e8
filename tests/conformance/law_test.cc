// The laws of docs/math.md, section 3, by enumeration: not on a sample, but for every token that
// could have been drawn.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/numerics/philox.h"
#include "kernels/records/mass_cut.h"
#include "tests/conformance/backends.h"
#include "tests/conformance/policy_pairs.h"
#include "tests/conformance/positions.h"

namespace sis {
namespace {

constexpr int kPositions = 40'000;
constexpr int kLargestK = 16;

class LawTest : public BackendTest {};
SIS_INSTANTIATE_BACKENDS(LawTest);

int Between(std::mt19937_64& random, int first, int last) {
  return std::uniform_int_distribution<int>(first, last)(random);
}

// One position, once for every token of the vocabulary in the place of the sampled one.
struct Enumeration {
  PolicyPair pair;
  EvaluateParameters parameters;
  uint64_t sequence_key;
  uint32_t first_position;
  Positions positions;  // row v: y = pair.ids[v]

  // |V_k|
  size_t members() const { return std::min(pair.size(), static_cast<size_t>(parameters.top_k)); }
};

Enumeration RandomEnumeration(std::mt19937_64& random) {
  const int slots = Between(random, 1, kLargestK);
  Enumeration e{
      .pair = RandomPolicyPair(random, Between(random, 1, 2 * slots)),
      .parameters = {.slots = slots, .top_k = Between(random, 1, slots), .draw = random()},
      .sequence_key = random(),
      .first_position = static_cast<uint32_t>(Between(random, 0, 4'000'000)),
      .positions = {}};
  e.positions.slots = slots;
  for (size_t v = 0; v < e.pair.size(); ++v) AppendPosition(e.pair, v, e.positions);
  return e;
}

// The same for every law and every backend: making them takes longer than evaluating them.
const std::vector<Enumeration>& Enumerations() {
  static const std::vector<Enumeration> enumerations = [] {
    std::mt19937_64 random(1);
    std::vector<Enumeration> made;
    made.reserve(kPositions);
    for (int i = 0; i < kPositions; ++i) made.push_back(RandomEnumeration(random));
    return made;
  }();
  return enumerations;
}

// log M, from the slots alone. Used members come first.
float LogEnvelope(const Enumeration& e) {
  float largest = kMinusInfinity;
  for (size_t v = 0; v < e.members(); ++v) {
    largest = std::max(largest, e.pair.current[v] - e.pair.behavior[v]);
  }
  return Flush(largest);
}

// q(v) a(v) M = p(v), in float32. Let u = 2^-24. The float32 lM is M's definition, so it has no
// error here; the subtraction that gives lw is off by at most u |lw|, the one that gives lw - lM by
// at most u |lw - lM|, and exp32 by one unit in the last place, a factor of at most 1 + 2^-23. The
// errors add up in log(q a M) - log p:
//     |log(q a M) - log p| <= u |lw| + u |lw - lM| + 2^-23,
// to which the second orders add less than a thousandth. Flushing changes lw and lM by less than
// 2^-100. Below lw - lM = -87, a is 0 instead of less than e^-87.
double LawBound(double log_ratio, double log_envelope) {
  return 1.001 * 0x1p-24 * (std::abs(log_ratio) + std::abs(log_ratio - log_envelope) + 2) + 0x1p-99;
}

// What the tokens of a position come to.
struct Accepted {
  double rate = 0;  // sum of q(v) a(v), off by at most:
  // Each term is right up to a relative LawBound; the covered mass of up to 16 terms adds (16 + 1)
  // u, the exponential of -lM and the product 3 u, the fixed point 2^-30 a row.
  double error = 0x1p-30 + kLargestK * 1e-37;
  int64_t checked = 0;  // members by the law's bound
  int64_t outside = 0;
};

// The members follow p at this envelope, the others are outside.
void CheckLaw(const Enumeration& e, const Results& results, double log_envelope,
              Accepted& accepted) {
  for (size_t v = 0; v < e.pair.size(); ++v) {
    const double log_q = e.pair.behavior[v];
    const double log_p = e.pair.current[v];
    const double a = results.acceptance_probabilities[v];
    if (v >= e.members()) {
      ASSERT_EQ(results.decisions[v], Decision::kOutsideTopK);
      ASSERT_EQ(a, 0.0);
      ++accepted.outside;
    } else if (std::isinf(log_p)) {
      ASSERT_EQ(a, 0.0);
    } else if (log_p - log_q - log_envelope < -86.99) {
      ASSERT_TRUE(a <= std::exp(-86.98)) << a;
    } else {
      const double bound = LawBound(log_p - log_q, log_envelope);
      ASSERT_TRUE(std::abs(log_q + std::log(a) + log_envelope - log_p) <= bound)
          << "slot " << v << ": log(q a M) = " << log_q + std::log(a) + log_envelope
          << ", log p = " << log_p;
      accepted.rate += std::exp(log_q) * a;
      accepted.error += std::exp(log_q) * a * 1.001 * (bound + 20 * 0x1p-24);
      ++accepted.checked;
    }
  }
}

TEST_P(LawTest, BehaviourTimesAcceptanceTimesEnvelopeIsTheCurrentPolicy) {
  int64_t checked = 0;
  for (const Enumeration& e : Enumerations()) {
    const Results results =
        Evaluate(backend(), e.parameters, e.sequence_key, e.first_position, e.positions);
    Accepted accepted;
    ASSERT_NO_FATAL_FAILURE(CheckLaw(e, results, LogEnvelope(e), accepted))
        << "position " << e.first_position;
    checked += accepted.checked;
  }
  EXPECT_GT(checked, 3 * kPositions);
}

// If M depended on y, acceptance would no longer follow p, by however little: so all bits must
// agree.
TEST_P(LawTest, TheEnvelopeIsTheSameBitsWhicheverTokenWasDrawn) {
  for (const Enumeration& e : Enumerations()) {
    const Results results =
        Evaluate(backend(), e.parameters, e.sequence_key, e.first_position, e.positions);
    const float log_envelope = LogEnvelope(e);
    ASSERT_EQ(results.sums.log_envelope, static_cast<int64_t>(e.pair.size()) * Fixed(log_envelope));
    for (size_t v = 0; v < e.members(); ++v) {
      const float log_ratio = Flush(e.pair.current[v] - e.pair.behavior[v]);
      const float expected = std::isinf(log_ratio) ? 0.0f : Exp32(Flush(log_ratio - log_envelope));
      ASSERT_EQ(std::bit_cast<uint32_t>(results.acceptance_probabilities[v]),
                std::bit_cast<uint32_t>(expected))
          << "position " << e.first_position << ", slot " << v;
    }
  }
}

// The decision is the uniform of this position, against the acceptance probability rounded down to
// 32 bits.
TEST_P(LawTest, TheDecisionIsTheUniformBelowTheThreshold) {
  for (const Enumeration& e : Enumerations()) {
    const Results results =
        Evaluate(backend(), e.parameters, e.sequence_key, e.first_position, e.positions);
    for (size_t v = 0; v < e.members(); ++v) {
      const uint32_t position = e.first_position + static_cast<uint32_t>(v);
      const uint32_t uniform =
          AcceptanceUniforms(e.sequence_key, position / 4, e.parameters.draw).word[position % 4];
      const bool accepted = uniform < results.acceptance_probabilities[v] * 0x1p32;
      ASSERT_EQ(results.decisions[v], accepted ? Decision::kAccepted : Decision::kRejected);
      const float log_modified = accepted ? 0.0f : Flush(e.pair.current[v] - e.pair.behavior[v]);
      ASSERT_EQ(results.log_modified_ratios[v], log_modified);
      ASSERT_EQ(results.modified_ratios[v], Exp32(log_modified));
    }
  }
}

TEST_P(LawTest, ATokenOutsideIsNeverAccepted) {
  int64_t outside = 0;
  for (const Enumeration& e : Enumerations()) {
    const Results results =
        Evaluate(backend(), e.parameters, e.sequence_key, e.first_position, e.positions);
    for (size_t v = e.members(); v < e.pair.size(); ++v, ++outside) {
      ASSERT_EQ(results.decisions[v], Decision::kOutsideTopK);
      ASSERT_EQ(results.acceptance_probabilities[v], 0.0f);
    }
    ASSERT_EQ(results.sums.outside_top_k, static_cast<int64_t>(e.pair.size() - e.members()));
  }
  EXPECT_GT(outside, kPositions);
}

TEST_P(LawTest, EqualPoliciesAcceptEveryMember) {
  for (Enumeration e : Enumerations()) {
    e.positions.current_log_probs = e.positions.behavior_log_probs;
    e.positions.current_sampled_log_probs = e.positions.behavior_sampled_log_probs;
    const Results results =
        Evaluate(backend(), e.parameters, e.sequence_key, e.first_position, e.positions);
    ASSERT_EQ(results.sums.accepted, static_cast<int64_t>(e.members()));
    ASSERT_EQ(results.sums.d, 0);
    ASSERT_EQ(results.sums.log_envelope, 0);
  }
}

// Sum over v of q(v) a(v) = (1 - xi) / M: the accept rate that `expected_acceptance` promises.
TEST_P(LawTest, TheMarginalAcceptRateIsTheExpectedAcceptance) {
  for (const Enumeration& e : Enumerations()) {
    const Results results =
        Evaluate(backend(), e.parameters, e.sequence_key, e.first_position, e.positions);
    Accepted accepted;
    ASSERT_NO_FATAL_FAILURE(CheckLaw(e, results, LogEnvelope(e), accepted))
        << "position " << e.first_position;
    const double promised = FromFixed(results.sums.expected_acceptance) / e.pair.size();
    ASSERT_TRUE(std::abs(std::min(accepted.rate, 1.0) - promised) <= accepted.error)
        << "position " << e.first_position << ": " << accepted.rate << " against " << promised;
  }
}

// A run's mass target makes V_k as long as the behaviour policy alone says: the same for every
// token that could have been drawn. Those of what is left follow p by the same bound, the others
// are outside.
TEST_P(LawTest, ASetCutToItsMassKeepsTheLaw) {
  std::mt19937_64 random(12);
  int64_t checked = 0;
  int64_t outside = 0;
  for (Enumeration e : Enumerations()) {
    const double mass = std::uniform_real_distribution<double>(0.3, 0.9999)(random);
    const size_t slots = e.positions.slots;
    CutToMass(mass, slots, e.positions.ids, e.positions.behavior_log_probs,
              e.positions.sampled_ranks);
    const auto set = std::span(e.positions.ids).first(slots);
    const size_t used = std::ranges::find(set, -1) - set.begin();
    for (size_t v = 0; v < e.pair.size(); ++v) {
      ASSERT_TRUE(std::ranges::equal(std::span(e.positions.ids).subspan(v * slots, slots), set));
    }
    const Results results =
        Evaluate(backend(), e.parameters, e.sequence_key, e.first_position, e.positions);
    e.parameters.top_k = std::min(e.parameters.top_k, static_cast<int>(used));
    const double log_envelope = LogEnvelope(e);
    ASSERT_EQ(results.sums.log_envelope,
              static_cast<int64_t>(e.pair.size()) * Fixed(LogEnvelope(e)));
    Accepted accepted;
    ASSERT_NO_FATAL_FAILURE(CheckLaw(e, results, log_envelope, accepted))
        << "position " << e.first_position << ", mass " << mass;
    checked += accepted.checked;
    outside += accepted.outside;
    const double promised = FromFixed(results.sums.expected_acceptance) / e.pair.size();
    ASSERT_TRUE(std::abs(std::min(accepted.rate, 1.0) - promised) <= accepted.error);
  }
  EXPECT_GT(checked, 2 * kPositions);
  EXPECT_GT(outside, 2 * kPositions);
}

TEST_P(LawTest, DSisIsAtMostD) {
  int64_t smaller = 0;
  for (const Enumeration& e : std::span(Enumerations()).first(5'000)) {
    const Results results =
        Evaluate(backend(), e.parameters, e.sequence_key, e.first_position, e.positions);
    ASSERT_LE(results.sums.d_sis, results.sums.d);
    smaller += results.sums.d_sis < results.sums.d;
    int64_t rest = 0;
    for (const float log_ratio : results.log_modified_ratios) rest += Fixed(std::abs(log_ratio));
    ASSERT_EQ(results.sums.d_sis, rest);
  }
  EXPECT_GT(smaller, 1'000);
}

TEST_P(LawTest, APointOfThePrefixCurveIsTheSumsOfAnEvaluationWithThatK) {
  std::mt19937_64 random(8);
  for (int i = 0; i < 300; ++i) {
    const int slots = Between(random, 1, 3 * kLargestK);
    EvaluateParameters parameters{slots, Between(random, 1, slots), random()};
    std::vector<int> curve(parameters.top_k);
    std::iota(curve.begin(), curve.end(), 1);
    std::shuffle(curve.begin(), curve.end(), random);
    curve.resize(std::min<size_t>(curve.size(), Between(random, 1, kMaxPrefixPoints)));
    std::sort(curve.begin(), curve.end());
    parameters.prefix_curve = curve;

    const Positions positions = RandomPositions(random, slots, 40);
    const Results results = Evaluate(backend(), parameters, 1, 2, positions);
    ASSERT_EQ(results.prefix_sums.size(), curve.size());
    for (size_t point = 0; point < curve.size(); ++point) {
      const Sums alone =
          Evaluate(backend(), {slots, curve[point], parameters.draw}, 1, 2, positions).sums;
      ASSERT_EQ(results.prefix_sums[point].residual_mass, alone.residual_mass) << curve[point];
      ASSERT_EQ(results.prefix_sums[point].expected_acceptance, alone.expected_acceptance)
          << curve[point];
    }
    // And it changes nothing else.
    parameters.prefix_curve = {};
    ASSERT_TRUE(results.sums == Evaluate(backend(), parameters, 1, 2, positions).sums);
  }
}

TEST_P(LawTest, TotalVariationIsInTheUnitIntervalAnd0ForEqualPolicies) {
  std::mt19937_64 random(9);
  for (int i = 0; i < 2'000; ++i) {
    const int slots = Between(random, 1, kLargestK);
    const EvaluateParameters parameters{slots, Between(random, 1, slots), random(), true};
    Positions positions = RandomPositions(random, slots, 1);
    const int64_t total_variation =
        Evaluate(backend(), parameters, 1, 0, positions).sums.total_variation;
    ASSERT_GE(total_variation, 0);
    ASSERT_LE(total_variation, Fixed(1.0f));
    positions.current_log_probs = positions.behavior_log_probs;
    ASSERT_EQ(Evaluate(backend(), parameters, 1, 0, positions).sums.total_variation, 0);
  }
}

TEST_P(LawTest, TotalVariationOfDisjointPoliciesIs1) {
  // Both masses a little above 1, by rounding.
  Positions positions;
  positions.slots = 2;
  positions.sampled_ids = {0};
  positions.behavior_sampled_log_probs = {0x1p-7f};
  positions.sampled_ranks = {0};
  positions.ids = {0, 1};
  positions.behavior_log_probs = {0x1p-7f, -100.0f};
  positions.current_sampled_log_probs = {kMinusInfinity};
  positions.current_log_probs = {kMinusInfinity, 0x1p-7f};
  EXPECT_EQ(Evaluate(backend(), {2, 2, 0, true}, 1, 0, positions).sums.total_variation,
            Fixed(1.0f));
}

// w - 1 - log w: its mean over y ~ q is KL(q || p), and it is never negative.
TEST_P(LawTest, K3IsNeverNegativeAnd0ForEqualPolicies) {
  std::mt19937_64 random(10);
  for (int i = 0; i < 2'000; ++i) {
    const int slots = Between(random, 1, kLargestK);
    const EvaluateParameters parameters{slots, slots, random()};
    Positions positions = RandomPositions(random, slots, 1);
    ASSERT_GE(Evaluate(backend(), parameters, 1, 0, positions).sums.k3, 0);
    for (const float drift : {1e-7f, 1e-6f, 1e-5f, 1e-4f, 0.3f, 0.4f}) {
      positions.current_sampled_log_probs[0] = positions.behavior_sampled_log_probs[0] - drift;
      ASSERT_GE(Evaluate(backend(), parameters, 1, 0, positions).sums.k3, 0);
    }
    positions.current_sampled_log_probs = positions.behavior_sampled_log_probs;
    ASSERT_EQ(Evaluate(backend(), parameters, 1, 0, positions).sums.k3, 0);
  }
}

}  // namespace
}  // namespace sis
