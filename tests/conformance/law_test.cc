// The laws of docs/math.md, section 3, by enumeration of every token that could have been drawn.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/conformance/backends.h"
#include "tests/conformance/policy_pairs.h"
#include "tests/conformance/positions.h"

namespace sis {
namespace {

constexpr int kPositions = 20'000;
constexpr int kLargestK = 16;

class LawTest : public BackendTest {};
SIS_INSTANTIATE_BACKENDS(LawTest);

uint32_t Bits(float x) { return std::bit_cast<uint32_t>(x); }

int Between(std::mt19937_64& random, int first, int last) {
  return std::uniform_int_distribution<int>(first, last)(random);
}

// One position, repeated with every token of the vocabulary as the sampled one.
struct Enumeration {
  PolicyPair pair;
  EvaluateParameters parameters;
  uint64_t sequence_key;
  uint32_t first_position;
  Positions positions;  // row v: y = pair.ids[v]
  Packing packing;
  Packed packed = Packed(positions, first_position, packing);

  // Rounded behaviour log-probs of V_k. They do not depend on the drawn token.
  std::span<const float> members() const {
    return packed.LogProbs(0, 1).first(std::min<size_t>(packed.used(0), parameters.top_k));
  }
  // log M, from the members alone.
  float LogEnvelope() const {
    float largest = kMinusInfinity;
    for (size_t v = 0; v < members().size(); ++v) {
      largest = std::max(largest, pair.current[v] - members()[v]);
    }
    return Flush(largest);
  }
  Results Decide(const Backend& backend) const {
    return Evaluate(backend, parameters, sequence_key, packed);
  }
};

std::ostream& operator<<(std::ostream& out, const Enumeration& e) {
  return out << "position " << e.first_position << ", encoding "
             << static_cast<int>(e.packing.encoding) << ", mass " << e.packing.mass;
}

Enumeration Enumerate(PolicyPair pair, int slots, int top_k, Packing packing,
                      std::mt19937_64& random) {
  Positions positions;
  positions.slots = slots;
  for (size_t v = 0; v < pair.size(); ++v) AppendPosition(pair, v, positions);
  return {.pair = std::move(pair),
          .parameters = {.top_k = top_k, .draw = random()},
          .sequence_key = random(),
          .first_position = static_cast<uint32_t>(Between(random, 0, 4'000'000)),
          .positions = std::move(positions),
          .packing = packing};
}

// In either encoding, every second one with sets cut to a mass. The same for every law and every
// backend: making them takes longer than evaluating them.
const std::vector<Enumeration>& Enumerations() {
  static const std::vector<Enumeration> enumerations = [] {
    std::mt19937_64 random(1);
    std::vector<Enumeration> made;
    made.reserve(kPositions);
    for (int i = 0; i < kPositions; ++i) {
      const int slots = Between(random, 1, kLargestK);
      const double mass = std::uniform_real_distribution<double>(0.3, 0.9999)(random);
      PolicyPair pair = RandomPolicyPair(random, Between(random, 1, 2 * slots));
      made.push_back(Enumerate(
          std::move(pair), slots, Between(random, 1, slots),
          {i % 2 == 0 ? BlockEncoding::kFloat32 : BlockEncoding::kFixed16, i % 4 < 2 ? 0 : mass},
          random));
    }
    return made;
  }();
  return enumerations;
}

// q(v) a(v) M = p(v), in float32. Let u = 2^-24. The float32 lM is M's definition, so it has no
// error here. The subtraction that gives lw is off by at most u |lw|. The one that gives lw - lM is
// off by at most u |lw - lM|. exp32 is off by one unit in the last place, a factor of at most 1 +
// 2^-23. The errors add up in log(q a M) - log p:
//     |log(q a M) - log p| <= u |lw| + u |lw - lM| + 2^-23,
// to which the second orders add less than a thousandth. Flushing changes lw and lM by less than
// 2^-100. Below lw - lM = -87, a is 0 instead of less than e^-87.
double LawBound(double log_ratio, double log_envelope) {
  return 1.001 * 0x1p-24 * (std::abs(log_ratio) + std::abs(log_ratio - log_envelope) + 2) + 0x1p-99;
}

// The members follow p, the others are outside, and the accept rate, the sum over v of q(v) a(v),
// is the (1 - xi) / M that `expected_acceptance` promises. Here q is exact, M of rounded log-probs.
void ExpectLaw(const Enumeration& e, const Results& results) {
  const double log_envelope = e.LogEnvelope();
  double rate = 0;
  // Each term is right up to a relative LawBound; the covered mass of up to 16 terms adds (16 + 1)
  // u, the exponential of -lM and the product 3 u, the fixed point 2^-30 a row.
  double error = 0x1p-30 + kLargestK * 1e-37;
  for (size_t v = 0; v < e.pair.size(); ++v) {
    const double log_q = e.pair.behavior[v];
    const double log_p = e.pair.current[v];
    const double a = results.acceptance_probabilities[v];
    if (v >= e.members().size()) {
      ASSERT_EQ(results.decisions[v], Decision::kOutsideTopK);
      ASSERT_EQ(a, 0.0);
    } else if (std::isinf(log_p)) {
      ASSERT_EQ(a, 0.0);
    } else if (log_p - log_q - log_envelope < -86.99) {
      ASSERT_TRUE(a <= std::exp(-86.98)) << a;
    } else {
      const double bound = LawBound(log_p - log_q, log_envelope);
      ASSERT_TRUE(std::abs(log_q + std::log(a) + log_envelope - log_p) <= bound)
          << "slot " << v << ": log(q a M) = " << log_q + std::log(a) + log_envelope
          << ", log p = " << log_p;
      rate += std::exp(log_q) * a;
      error += std::exp(log_q) * a * 1.001 * (bound + 20 * 0x1p-24);
    }
  }
  const auto outside = static_cast<int64_t>(e.pair.size() - e.members().size());
  ASSERT_EQ(results.sums.outside_top_k, outside);
  ASSERT_EQ(results.sums.envelope_violations, 0);
  const double promised = FromFixed(results.sums.expected_acceptance) / e.pair.size();
  ASSERT_TRUE(std::abs(std::min(rate, 1.0) - promised) <= error) << rate << " against " << promised;
}

TEST_P(LawTest, AcceptedTokensFollowTheCurrentPolicyOnTheRecordedSet) {
  int64_t members = 0, outside = 0;
  for (const Enumeration& e : Enumerations()) {
    ASSERT_NO_FATAL_FAILURE(ExpectLaw(e, e.Decide(backend()))) << e;
    members += e.members().size();
    outside += e.pair.size() - e.members().size();
  }
  EXPECT_GT(members, 2 * kPositions);
  EXPECT_GT(outside, 2 * kPositions);
}

// If M depended on y, acceptance would no longer follow p, by however little: so all bits must
// agree.
TEST_P(LawTest, TheEnvelopeIsTheSameBitsWhicheverTokenWasDrawn) {
  for (const Enumeration& e : Enumerations()) {
    const Results results = e.Decide(backend());
    const float log_envelope = e.LogEnvelope();
    for (size_t v = 0; v < e.pair.size(); ++v) {
      ASSERT_TRUE(std::ranges::equal(e.packed.LogProbs(v, 1), e.packed.LogProbs(0, 1))) << e;
      ASSERT_EQ(Bits(results.log_envelopes[v]), Bits(log_envelope)) << e << ", slot " << v;
      if (v >= e.members().size()) continue;
      const float log_ratio = Flush(e.pair.current[v] - e.pair.behavior[v]);
      const float expected = std::isinf(log_ratio) ? 0.0f : Exp32(Flush(log_ratio - log_envelope));
      ASSERT_EQ(Bits(results.acceptance_probabilities[v]), Bits(expected)) << e << ", slot " << v;
    }
  }
}

// With fixed16 M is 1 up to the largest step, which is 255 2^-18.
TEST_P(LawTest, EqualPoliciesAcceptEveryMember) {
  for (const Enumeration& e : Enumerations()) {
    Positions equal = e.positions;
    equal.current_log_probs = equal.behavior_log_probs;
    equal.current_sampled_log_probs = equal.behavior_sampled_log_probs;
    const Results results =
        Evaluate(backend(), e.parameters, e.sequence_key, e.first_position, equal, e.packing);
    ASSERT_EQ(results.sums.d, 0);
    if (e.packing.encoding == BlockEncoding::kFloat32) {
      ASSERT_EQ(results.sums.accepted, static_cast<int64_t>(e.members().size())) << e;
      ASSERT_EQ(results.sums.log_envelope, 0);
      continue;
    }
    for (size_t v = 0; v < e.members().size(); ++v) {
      ASSERT_GT(results.acceptance_probabilities[v], 1 - 0x1p-10f) << e << ", slot " << v;
    }
  }
}

// The top 5 of a recorded model, as the service's clients order them, and a current policy whose
// logits have normal noise.
std::vector<PolicyPair> RecordedSetsWithDrift(const std::string& path, double drift) {
  std::ifstream file(path);
  const nlohmann::json recorded = nlohmann::json::parse(file);
  std::vector<PolicyPair> pairs;
  std::mt19937 random(2);
  std::normal_distribution<double> normal;
  for (const nlohmann::json& content : recorded["logprobs"]["content"]) {
    std::vector<std::pair<float, int32_t>> top;
    for (const nlohmann::json& slot : content["top_logprobs"]) {
      top.emplace_back(-static_cast<float>(slot["logprob"]), slot["id"]);
    }
    std::ranges::sort(top);
    PolicyPair& pair = pairs.emplace_back();
    double covered = 0, sum = 0;
    for (const auto& [negative, id] : top) {
      pair.ids.push_back(id);
      pair.behavior.push_back(-negative);
      pair.current.push_back(static_cast<float>(-negative + drift * normal(random)));
      covered += std::exp(static_cast<double>(-negative));
      sum += std::exp(static_cast<double>(pair.current.back()));
    }
    sum += std::max(0.0, 1 - covered);
    for (float& log_prob : pair.current) log_prob -= static_cast<float>(std::log(sum));
  }
  return pairs;
}

// Sets of language models: the law, and what rounding takes of the accept rate.
TEST_P(LawTest, HoldsOnRecordedSetsWhereFixed16CostsAFewTokensInTenThousand) {
  const char* folder = std::getenv("SIS_RECORDED_DATA");
  if (folder == nullptr) GTEST_SKIP() << "no recorded log-probs: $SIS_RECORDED_DATA is not set";
  std::mt19937_64 random(2);
  for (const char* model : {"qwen-3-1-7b_cpu", "gemma-3-270m_cpu"}) {
    const auto pairs = RecordedSetsWithDrift(std::string(folder) + "/" + model + ".json", 0.2);
    ASSERT_FALSE(pairs.empty());
    const auto accept_rate = [&](Packing packing) {
      double rate = 0;
      for (const PolicyPair& pair : pairs) {
        const auto slots = static_cast<int>(pair.size());
        const Enumeration e = Enumerate(pair, slots, slots, packing, random);
        const Results results = e.Decide(backend());
        EXPECT_NO_FATAL_FAILURE(ExpectLaw(e, results)) << e;
        rate += FromFixed(results.sums.expected_acceptance) / (slots * pairs.size());
      }
      return rate;
    };
    for (const double mass : {0.0, 0.97}) {
      const double exact = accept_rate({BlockEncoding::kFloat32, mass});
      const double rounded = accept_rate({BlockEncoding::kFixed16, mass});
      EXPECT_GT(exact, 0.5);
      EXPECT_LE(rounded, exact);
      EXPECT_GE(rounded, (1 - 0.0005) * exact) << model << ", mass " << mass;
    }
  }
}

TEST_P(LawTest, DSisIsAtMostD) {
  int64_t smaller = 0;
  for (const Enumeration& e : std::span(Enumerations()).first(5'000)) {
    const Results results = e.Decide(backend());
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
    EvaluateParameters parameters{Between(random, 1, slots), random()};
    std::vector<int> curve(parameters.top_k);
    std::iota(curve.begin(), curve.end(), 1);
    std::shuffle(curve.begin(), curve.end(), random);
    curve.resize(std::min<size_t>(curve.size(), Between(random, 1, kMaxPrefixPoints)));
    std::sort(curve.begin(), curve.end());
    parameters.prefix_curve = curve;

    const Packed packed(RandomPositions(random, slots, 40), 2,
                        {i % 2 == 0 ? BlockEncoding::kFloat32 : BlockEncoding::kFixed16});
    const Results results = Evaluate(backend(), parameters, 1, packed);
    ASSERT_EQ(results.prefix_sums.size(), curve.size());
    for (size_t point = 0; point < curve.size(); ++point) {
      const Sums alone = Evaluate(backend(), {curve[point], parameters.draw}, 1, packed).sums;
      ASSERT_EQ(results.prefix_sums[point].residual_mass, alone.residual_mass) << curve[point];
      ASSERT_EQ(results.prefix_sums[point].expected_acceptance, alone.expected_acceptance)
          << curve[point];
    }
    // And it changes nothing else.
    parameters.prefix_curve = {};
    ASSERT_TRUE(results.sums == Evaluate(backend(), parameters, 1, packed).sums);
  }
}

TEST_P(LawTest, TotalVariationIsInTheUnitIntervalAnd0ForEqualPolicies) {
  std::mt19937_64 random(9);
  for (int i = 0; i < 2'000; ++i) {
    const int slots = Between(random, 1, kLargestK);
    const EvaluateParameters parameters{Between(random, 1, slots), random(), true};
    Positions positions = RandomPositions(random, slots, 1);
    const int64_t total_variation =
        Evaluate(backend(), parameters, 1, 0, positions).sums.total_variation;
    ASSERT_GE(total_variation, 0);
    ASSERT_LE(total_variation, Fixed(1.0f));
    positions.current_log_probs = positions.behavior_log_probs;
    ASSERT_EQ(Evaluate(backend(), parameters, 1, 0, positions).sums.total_variation, 0);
  }
}

}  // namespace
}  // namespace sis
