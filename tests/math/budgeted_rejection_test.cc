// What budgeted rejection promises, with the decisions of every backend (docs/math.md, section 8).
#include "kernels/decide/algorithms/budgeted_rejection.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/numerics/sequence_key.h"
#include "kernels/records/validate.h"
#include "tests/conformance/backends.h"
#include "tests/conformance/golden_reader.h"
#include "tests/conformance/policy_pairs.h"
#include "tests/conformance/positions.h"

namespace sis {
namespace {

class BudgetedRejectionTest : public BackendTest {};
SIS_INSTANTIATE_BACKENDS(BudgetedRejectionTest);

constexpr int kTokens = 12;
constexpr uint64_t kSequenceKey = 0x5eed;
constexpr uint64_t kDraw = 7;

// A backend's results, decided again.
Results DecideAgain(const Backend& backend, const BudgetedRejection& rejection,
                    const Positions& positions, uint64_t draw = kDraw) {
  Results results(positions.size());
  const Stretch stretch =
      StretchOf(positions, 0, positions.size(), kSequenceKey, /*first_position=*/3, results);
  backend.Evaluate({positions.slots, positions.slots, draw}, std::span(&stretch, 1));
  DecideWithinBudget(rejection, draw, std::span(&stretch, 1), results.sums);
  return results;
}

std::vector<float> Normalizers(const BudgetedRejection& rejection, const Positions& positions) {
  Results results(positions.size());
  std::vector<float> normalizers(positions.size());
  ComputeNormalizers(rejection, {positions.slots, positions.slots, kDraw},
                     StretchOf(positions, 0, positions.size(), kSequenceKey, 3, results),
                     normalizers);
  return normalizers;
}

std::vector<BudgetedRejection> Budgets() { return {{-0.7f}, {0.0f}, {0.3f}, {2.5f}}; }

// One position for every token of the vocabulary, of which `slots` are recorded.
Positions EveryToken(const PolicyPair& pair, int slots) {
  Positions positions;
  positions.slots = slots;
  for (size_t v = 0; v < pair.size(); ++v) AppendPosition(pair, v, positions);
  return positions;
}

// log of what q a should be, and how far rounding may take it: one each in log w and log w - log
// lambda, a unit in the last place of the exponential, and the argument of the test.
double LogShare(const PolicyPair& pair, size_t v, double log_lambda) {
  return std::min<double>(pair.behavior[v], pair.current[v] - log_lambda);
}
double Bound(const PolicyPair& pair, size_t v, double log_lambda) {
  const double log_ratio = static_cast<double>(pair.current[v]) - pair.behavior[v];
  return 0x1p-24 * (std::abs(log_ratio) + std::abs(log_ratio - log_lambda) + 2);
}

TEST_P(BudgetedRejectionTest, AcceptedTokensFollowTheSmallerOfBothPoliciesInTheSetAndOutside) {
  std::mt19937_64 random(1);
  int outside = 0;
  for (int repeat = 0; repeat < 500; ++repeat) {
    const PolicyPair pair = RandomPolicyPair(random, kTokens);
    for (const int slots : {kTokens, 5}) {
      const Positions positions = EveryToken(pair, slots);
      for (const BudgetedRejection& rejection : Budgets()) {
        const double log_lambda = rejection.log_lambda;
        const Results results = DecideAgain(backend(), rejection, positions);
        const std::vector<float> normalizers = Normalizers(rejection, positions);
        double in_set = 0;
        for (size_t v = 0; v < pair.size(); ++v) {
          const double a = results.acceptance_probabilities[v];
          const double log_share = LogShare(pair, v, log_lambda);
          if (v < static_cast<size_t>(slots)) in_set += std::exp(log_share);
          if (log_share - pair.behavior[v] < -86) {
            EXPECT_LE(a, 1e-36);
            continue;
          }
          EXPECT_NEAR(std::log(a) + pair.behavior[v], log_share, Bound(pair, v, log_lambda));
          // On average over the draw the modified ratio is w.
          const float log_ratio = results.log_ratios[v];
          EXPECT_NEAR(std::log(a) + rejection.LogAcceptedRatio(log_ratio), log_ratio,
                      Bound(pair, v, log_lambda));
          outside += v >= static_cast<size_t>(slots) && a > 0;
        }
        // Z is what is accepted on average over y; of a part of the vocabulary, its part.
        for (const float normalizer : normalizers) {
          EXPECT_EQ(normalizer, normalizers.front()) << "must not depend on the sampled token";
          EXPECT_NEAR(normalizer, in_set, in_set * 0x1p-24 * (kTokens + 80));
        }
      }
    }
  }
  EXPECT_GT(outside, 1000);
}

TEST_P(BudgetedRejectionTest, TheDrawsOfTheServiceFollowThatLaw) {
  const std::vector<double> behavior = {0.5, 0.3, 0.15, 0.05}, current = {0.35, 0.3, 0.2, 0.15};
  constexpr double kLambda = 1.2;
  PolicyPair pair;
  for (size_t v = 0; v < behavior.size(); ++v) {
    pair.ids.push_back(static_cast<int32_t>(v));
    pair.behavior.push_back(static_cast<float>(std::log(behavior[v])));
    pair.current.push_back(static_cast<float>(std::log(current[v])));
  }
  constexpr size_t kCount = 100'000;
  std::mt19937_64 random(2);
  std::discrete_distribution<size_t> sample(behavior.begin(), behavior.end());
  Positions positions;
  positions.slots = 2;
  std::vector<size_t> tokens(kCount);
  for (size_t& token : tokens) AppendPosition(pair, token = sample(random), positions);
  const Results results =
      DecideAgain(backend(), {static_cast<float>(std::log(kLambda))}, positions);
  std::vector<double> accepted(behavior.size());
  for (size_t i = 0; i < kCount; ++i) {
    accepted[tokens[i]] += results.decisions[i] == Decision::kAccepted;
  }
  for (size_t v = 0; v < behavior.size(); ++v) {
    const double share = std::min(behavior[v], current[v] / kLambda);
    // Five standard deviations.
    EXPECT_NEAR(accepted[v] / kCount, share, 5 * std::sqrt(share * (1 - share) / kCount)) << v;
  }
}

TEST_P(BudgetedRejectionTest, InTheSetItIsAnEnvelopeThatIsTheSameEverywhere) {
  std::mt19937_64 random(3);
  const Positions positions = RandomPositions(random, 6, 5000);
  for (const BudgetedRejection& rejection : Budgets()) {
    Positions constant = Reduce(positions, 6);
    std::ranges::fill(constant.log_envelopes, rejection.log_lambda);
    const Results sis = Evaluate(backend(), {6, 6, kDraw}, kSequenceKey, 3, constant);
    const Results gathered = DecideAgain(backend(), rejection, positions);
    EXPECT_TRUE(SameBytes(DecideAgain(backend(), rejection, Reduce(positions, 6)), gathered));
    int64_t accepted = 0, expected = 0, outside_accepted = 0;
    for (size_t i = 0; i < positions.size(); ++i) {
      accepted += gathered.decisions[i] == Decision::kAccepted;
      expected += Fixed(gathered.acceptance_probabilities[i]);
      if (sis.decisions[i] == Decision::kOutsideTopK) {
        outside_accepted += gathered.decisions[i] == Decision::kAccepted;
        EXPECT_NE(gathered.decisions[i], Decision::kOutsideTopK);
        continue;
      }
      EXPECT_EQ(gathered.decisions[i], sis.decisions[i]);
      EXPECT_EQ(gathered.acceptance_probabilities[i], sis.acceptance_probabilities[i]);
      const bool is_accepted = gathered.decisions[i] == Decision::kAccepted;
      EXPECT_EQ(gathered.modified_ratios[i],
                is_accepted ? Exp32(std::max(gathered.log_ratios[i], rejection.log_lambda)) : 0);
    }
    EXPECT_GT(outside_accepted, 50);
    // The sums, and that what the decision does not touch stays.
    const Results before = Evaluate(backend(), {6, 6, kDraw}, kSequenceKey, 3, positions);
    Sums sums = before.sums;
    sums.accepted = accepted;
    sums.rejected = static_cast<int64_t>(positions.size()) - accepted;
    sums.outside_top_k = 0;
    sums.acceptance_probability = sums.expected_acceptance = expected;
    sums.d_sis = gathered.sums.d_sis;
    EXPECT_TRUE(gathered.sums == sums);
    EXPECT_LE(sums.d_sis, sums.d);
    EXPECT_GT(sums.d_sis, 0);
  }
}

TEST_P(BudgetedRejectionTest, EveryBackendGivesTheBytesOfTheFirst) {
  std::mt19937_64 random(4);
  const Positions positions = RandomPositions(random, 10, 3000);
  for (const BudgetedRejection& rejection : Budgets()) {
    EXPECT_TRUE(SameBytes(DecideAgain(backend(), rejection, positions),
                          DecideAgain(*Backends().front(), rejection, positions)));
  }
}

TEST_P(BudgetedRejectionTest, GoldenVectors) {
  GoldenReader golden("budgeted_rejection.txt");
  size_t positions_seen = 0;
  while (!golden.AtEnd()) {
    const uint64_t seed = golden.Uint64();
    const uint32_t attempt = golden.Uint32();
    const uint64_t key = SequenceKey(seed, attempt, golden.Bytes());
    const uint32_t first_position = golden.Uint32();
    EvaluateParameters parameters{};
    parameters.draw = golden.Uint64();
    parameters.slots = golden.Uint8();
    parameters.top_k = golden.Uint8();
    const uint32_t n = golden.Uint32();
    const BudgetedRejection rejection{golden.Float()};
    Positions positions;
    positions.slots = parameters.slots;
    Results expected(n);
    std::vector<float> expected_normalizers;
    for (uint32_t i = 0; i < n; ++i) {
      positions.sampled_ids.push_back(golden.Int32());
      positions.behavior_sampled_log_probs.push_back(golden.Float());
      for (int j = 0; j < positions.slots; ++j) positions.ids.push_back(golden.Int32());
      for (int j = 0; j < positions.slots; ++j) {
        positions.behavior_log_probs.push_back(golden.Float());
      }
      positions.current_sampled_log_probs.push_back(golden.Float());
      for (int j = 0; j < positions.slots; ++j) {
        positions.current_log_probs.push_back(golden.Float());
      }
      expected.decisions[i] = golden.Uint8() == 1 ? Decision::kAccepted : Decision::kRejected;
      expected.acceptance_probabilities[i] = golden.Float();
      expected.log_modified_ratios[i] = golden.Float();
      expected.modified_ratios[i] = golden.Float();
      expected_normalizers.push_back(golden.Float());
    }
    positions.sampled_ranks.resize(n);
    const absl::Status valid = ValidateRecords(positions.records(), positions.slots, 1 << 24,
                                               first_position, positions.sampled_ranks);
    ASSERT_TRUE(valid.ok()) << valid;
    Results results(n);
    const Stretch stretch = StretchOf(positions, 0, n, key, first_position, results);
    backend().Evaluate(parameters, std::span(&stretch, 1));
    DecideWithinBudget(rejection, parameters.draw, std::span(&stretch, 1), results.sums);
    std::vector<float> normalizers(n);
    ComputeNormalizers(rejection, parameters, stretch, normalizers);
    const auto same = [](const std::vector<float>& left, const std::vector<float>& right) {
      return std::ranges::equal(left, right, {}, std::bit_cast<uint32_t, float>,
                                std::bit_cast<uint32_t, float>);
    };
    EXPECT_EQ(results.decisions, expected.decisions);
    EXPECT_TRUE(same(results.acceptance_probabilities, expected.acceptance_probabilities));
    EXPECT_TRUE(same(results.log_modified_ratios, expected.log_modified_ratios));
    EXPECT_TRUE(same(results.modified_ratios, expected.modified_ratios));
    EXPECT_TRUE(same(normalizers, expected_normalizers));
    positions_seen += n;
  }
  EXPECT_GT(positions_seen, 300u);
}

TEST(BudgetedRejectionRange, NumbersThatAreNoneAreRefused) {
  for (const float bad : {NAN, INFINITY, -INFINITY, 64.5f, -65.0f}) {
    EXPECT_EQ(BudgetedRejection{bad}.Validate().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_TRUE(BudgetedRejection{-64.0f}.Validate().ok());
}

}  // namespace
}  // namespace sis
