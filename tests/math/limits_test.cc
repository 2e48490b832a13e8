// Limits of SIS, measured with the real decisions (docs/math.md, section 5). Seeds are
// fixed; where a bound is statistical it is five standard deviations: exceeded by chance in 6 of 10
// million runs.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/conformance/backends.h"
#include "tests/conformance/policy_pairs.h"
#include "tests/conformance/positions.h"

namespace sis {
namespace {

class LimitsTest : public BackendTest {};
SIS_INSTANTIATE_BACKENDS(LimitsTest);

constexpr double kStandardDeviations = 5;

PolicyPair PairOf(const std::vector<double>& behavior, const std::vector<double>& current) {
  PolicyPair pair;
  for (size_t v = 0; v < behavior.size(); ++v) {
    pair.ids.push_back(static_cast<int32_t>(v));
    pair.behavior.push_back(static_cast<float>(std::log(behavior[v])));
    pair.current.push_back(static_cast<float>(std::log(current[v])));
  }
  return pair;
}

// n positions of the same pair and the same sampled token.
Results DrawToken(const Backend& backend, const PolicyPair& pair, size_t token, size_t n) {
  Positions positions;
  positions.slots = static_cast<int>(pair.size());
  for (size_t i = 0; i < n; ++i) AppendPosition(pair, token, positions);
  return Evaluate(backend, {positions.slots, 0}, 0xabcdef + token, 0, positions);
}

// (a) Rejected tokens keep w, so the weight shrinks towards 1.

struct TokenWeights {
  double mean;
  double mean_square;
  double expected;  // a + (1 - a) w, from the acceptance probability
};

TokenWeights MeasureWeights(const Results& results, double ratio) {
  TokenWeights weights{};
  for (const float w : results.modified_ratios) {
    weights.mean += w / results.modified_ratios.size();
    weights.mean_square += static_cast<double>(w) * w / results.modified_ratios.size();
  }
  const double a = results.acceptance_probabilities[0];
  weights.expected = a + (1 - a) * ratio;
  return weights;
}

const std::vector<double> kBehavior = {0.5, 0.3, 0.15, 0.05};
const std::vector<double> kCurrent = {0.35, 0.3, 0.2, 0.15};  // w = 0.7, 1, 4/3, 3
constexpr double kEnvelope = 3;
constexpr size_t kDraws = 200'000;

TEST_P(LimitsTest, BiasIsTradedForVariance) {
  double chi_square = 0, spread_under_current = 0, noise = 0;  // the three terms of the derivation
  double mean = 0, mean_square = 0, mean_expected = 0, mean_square_expected = 0;
  double variance_of_mean = 0;
  for (size_t v = 0; v < kBehavior.size(); ++v) {
    const double w = kCurrent[v] / kBehavior[v];
    const double a = w / kEnvelope;
    chi_square += kBehavior[v] * (w - 1) * (w - 1);
    spread_under_current += kCurrent[v] * (w - 1) * (w - 1);
    noise += kBehavior[v] * a * (1 - a) * (w - 1) * (w - 1);

    const TokenWeights measured =
        MeasureWeights(DrawToken(backend(), PairOf(kBehavior, kCurrent), v, kDraws), w);
    mean += kBehavior[v] * measured.mean;
    mean_square += kBehavior[v] * measured.mean_square;
    mean_expected += kBehavior[v] * measured.expected;
    mean_square_expected += kBehavior[v] * measured.expected * measured.expected;
    // Weight and square are both affine in the decision, with slopes 1 - w and 1 - w^2.
    variance_of_mean += kBehavior[v] * kBehavior[v] * a * (1 - a) / kDraws *
                        std::pow(std::abs(1 - w) * (1 + w) + 2 * std::abs(1 - w), 2);
  }
  const double tolerance = kStandardDeviations * std::sqrt(variance_of_mean) + 1e-6;

  // Bias: the mean weight is 1 - chi^2 / M, not 1.
  EXPECT_NEAR(mean, 1 - chi_square / kEnvelope, tolerance);
  EXPECT_NEAR(mean_expected, 1 - chi_square / kEnvelope, 1e-6);
  EXPECT_GT(1 - mean, 10 * tolerance);

  // Variance: that of w is chi^2; it falls by E_p[(w - 1)^2] / M + (chi^2 / M)^2.
  const double fall = spread_under_current / kEnvelope + std::pow(chi_square / kEnvelope, 2);
  const double variance = mean_square - mean * mean;
  EXPECT_NEAR(variance, chi_square - fall, 2 * tolerance);
  EXPECT_GT(fall, 10 * tolerance);

  // The expected weight lacks the noise of the decision.
  EXPECT_NEAR(mean_square_expected - mean_expected * mean_expected, chi_square - fall - noise,
              1e-5);
  EXPECT_GT(noise, 1e-2);
}

// (b) D_SIS bounds the distance to the modified sequence gradient, not to the true one.

// Returns the distance between the sequence gradient with the given ratio and the token gradient
// with weights w~. The advantage is 1 and all scores are the same unit vector. The triangle
// inequality is then an equation, and |sum_t (ratio - w~_t)| the norm.
double Distance(double ratio, const std::vector<float>& weights) {
  double distance = 0;
  for (const float weight : weights) distance += ratio - weight;
  return std::abs(distance);
}

TEST_P(LimitsTest, DBoundsTheTrueDistanceWhereDSisDoesNot) {
  constexpr int kSequences = 2'000;
  constexpr int kLength = 8;
  std::mt19937_64 random(31);
  std::normal_distribution<double> normal;
  int above_d_sis = 0;
  for (int sequence = 0; sequence < kSequences; ++sequence) {
    Positions positions;
    positions.slots = 2;
    double log_ratio = 0;
    for (int t = 0; t < kLength; ++t) {
      const double p = 0.5 * std::exp(std::clamp(0.1 * normal(random), -0.5, 0.5));
      AppendPosition(PairOf({0.5, 0.5}, {p, 1 - p}), 0, positions);
      log_ratio += std::log(p / 0.5);
    }
    const Results results = Evaluate(backend(), {2, 0}, random(), 0, positions);
    double log_modified = 0;
    for (const float x : results.log_modified_ratios) log_modified += x;
    const double bound_of_d = kLength * std::expm1(FromFixed(results.sums.d));
    const double bound_of_d_sis = kLength * std::expm1(FromFixed(results.sums.d_sis));
    const double to_true = Distance(std::exp(log_ratio), results.modified_ratios);
    const double to_modified = Distance(std::exp(log_modified), results.modified_ratios);
    // 1e-5: float32 ratios against double ones.
    ASSERT_TRUE(to_modified <= bound_of_d_sis + 1e-5) << to_modified << " " << bound_of_d_sis;
    ASSERT_TRUE(to_true <= bound_of_d + 1e-5) << to_true << " " << bound_of_d;
    above_d_sis += to_true > bound_of_d_sis + 1e-5;
  }
  // Not a corner case.
  EXPECT_GT(above_d_sis, kSequences / 4);
}

// (c) Once the policy has been trained on y, p depends on y, and the certificate does not hold.

// The behaviour policy after one step that moved the logit of the token that was drawn by `step`.
std::vector<double> AfterStep(const std::vector<double>& behavior, size_t drawn, double step) {
  std::vector<double> current = behavior;
  current[drawn] *= std::exp(step);
  const double sum = 1 + behavior[drawn] * std::expm1(step);
  for (double& p : current) p /= sum;
  return current;
}

struct SecondPass {
  double accept_rate = 0;                   // over y from the behaviour policy
  double expected_acceptance = 0;           // what (1 - xi) / M promised
  std::array<double, 3> accepted_law = {};  // of y given acceptance
  std::array<double, 3> mean_policy = {};   // the current policy, averaged over y
};

const std::vector<double> kRollout = {0.5, 0.3, 0.2};

SecondPass MeasureSecondPass(const Backend& backend, double step) {
  SecondPass pass;
  for (size_t v = 0; v < kRollout.size(); ++v) {
    const std::vector<double> current = AfterStep(kRollout, v, step);
    const Sums sums = DrawToken(backend, PairOf(kRollout, current), v, kDraws).sums;
    const double accepted = kRollout[v] * sums.accepted / kDraws;
    pass.accept_rate += accepted;
    pass.accepted_law[v] = accepted;
    pass.expected_acceptance += kRollout[v] * FromFixed(sums.expected_acceptance) / kDraws;
    for (size_t u = 0; u < kRollout.size(); ++u) pass.mean_policy[u] += kRollout[v] * current[u];
  }
  for (double& law : pass.accepted_law) law /= pass.accept_rate;
  return pass;
}

TEST_P(LimitsTest, AfterAStepUpEveryTokenIsAcceptedAndFollowsTheBehaviourPolicy) {
  constexpr double kStep = 1;
  const SecondPass pass = MeasureSecondPass(backend(), kStep);
  EXPECT_EQ(pass.accept_rate, 1);
  // M = e^step / Z_y with Z_y = 1 + q(y) (e^step - 1); averaged over y, 1/M is e^-step (1 + sum q^2
  // (e^step - 1)).
  const double squares = 0.25 + 0.09 + 0.04;
  const double promised = std::exp(-kStep) * (1 + squares * std::expm1(kStep));
  EXPECT_NEAR(pass.expected_acceptance, promised, 1e-6);
  EXPECT_LT(promised, 0.61);
  double to_current = 0;
  for (size_t v = 0; v < kRollout.size(); ++v) {
    EXPECT_NEAR(pass.accepted_law[v], kRollout[v], 1e-12);
    to_current += 0.5 * std::abs(pass.accepted_law[v] - pass.mean_policy[v]);
  }
  EXPECT_GT(to_current, 0.01);
}

// If what y itself did to the policy moves no log-prob by more than e, the law of accepted tokens
// is off by a factor of at most exp(4 e) from the policy without it.
TEST_P(LimitsTest, ASmallDependenceBreaksTheCertificateLittle) {
  const std::vector<double> without = {0.4, 0.35, 0.25};  // trained on the other sequences
  for (const double step : {0.001, 0.01, 0.1}) {
    double largest = 0;
    std::array<double, 3> law = {};
    double rate = 0;
    for (size_t v = 0; v < kRollout.size(); ++v) {
      const std::vector<double> current = AfterStep(without, v, step);
      for (size_t u = 0; u < kRollout.size(); ++u) {
        largest = std::max(largest, std::abs(std::log(current[u] / without[u])));
      }
      const double a =
          DrawToken(backend(), PairOf(kRollout, current), v, 1).acceptance_probabilities[0];
      law[v] = kRollout[v] * a;
      rate += law[v];
    }
    double deviation = 0;
    for (size_t v = 0; v < kRollout.size(); ++v) {
      deviation = std::max(deviation, std::abs(std::log(law[v] / rate / without[v])));
    }
    EXPECT_LE(deviation, 4 * largest + 1e-6) << step;
    EXPECT_GT(deviation, 0.1 * largest) << step;
  }
}

}  // namespace
}  // namespace sis
