// Agreement with the definition in double precision, within bounds that follow from the roundings.
#include "kernels/testing/reference.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <span>

#include "gtest/gtest.h"
#include "tests/conformance/backends.h"
#include "tests/conformance/policy_pairs.h"
#include "tests/conformance/positions.h"

namespace sis {
namespace {

constexpr double kUnit = 0x1p-24;       // half a unit in the last place of 1: a rounding, relative
constexpr double kFixedStep = 0x1p-30;  // truncation in a sum
constexpr double kSecondOrder = 1.001;
constexpr double kSmallest = 1e-37;  // above e^-87: what exp32 counts as 0

class ReferenceTest : public BackendTest {};
SIS_INSTANTIATE_BACKENDS(ReferenceTest);

// In the order of the sums' clamp.
double Clamped(double x) { return std::fmin(std::fmax(x, -64.0), 64.0); }

void ExpectClose(double value, double expected, double bound, const char* what, size_t row) {
  // Both infinite and equal, or close; NaN is neither.
  EXPECT_TRUE(value == expected || std::abs(value - expected) <= bound)
      << what << " in row " << row << ": " << value << ", expected " << expected << " +- " << bound;
}

void ExpectAgreement(const Backend& backend, const EvaluateParameters& parameters,
                     const Packed& packed) {
  const BlockView& block = packed.blocks()[0];
  const auto k = static_cast<size_t>(parameters.top_k);
  for (size_t row = 0; row < packed.size(); ++row) {
    const Results results = Evaluate(backend, parameters, 1, packed, row, 1);
    const Sums& sums = results.sums;
    const CurrentView current = packed.Current(row, 1);
    const auto behavior = packed.LogProbs(row, 1).first(std::min(k, packed.used(row)));
    const ReferencePosition exact = EvaluateReference(
        behavior, current.log_probs.first(behavior.size()), block.sampled_log_probs[row],
        current.sampled_log_probs[0], block.ranks[row] < k);

    double behavior_mass = 0;
    for (const float log_prob : behavior) behavior_mass += std::exp(log_prob);

    // lw and lM are one rounding each; a adds the rounding of lw - lM and a unit in the last place
    // of exp32.
    const double log_ratio_error = kUnit * std::abs(exact.log_ratio) + 0x1p-100;
    const double envelope_error = kUnit * std::abs(exact.log_envelope) + 0x1p-100;
    const double acceptance_error =
        exact.acceptance_probability * kSecondOrder *
            (log_ratio_error + envelope_error +
             kUnit * std::abs(exact.log_ratio - exact.log_envelope) + 2 * kUnit) +
        kSmallest;
    // The sum of k exponentials: a unit in the last place each, and k - 1 roundings.
    const double mass_error =
        (1 - exact.residual_mass) * kSecondOrder * (k + 1) * kUnit + k * kSmallest;
    // A mass below 2^-100 is flushed, whatever the envelope would make of it.
    const bool flushed = exact.expected_acceptance * std::exp(exact.log_envelope) < 1.01 * 0x1p-100;
    double rate_error =
        std::isinf(exact.log_envelope)
            ? 0
            : kSecondOrder * (mass_error * std::exp(-exact.log_envelope) +
                              exact.expected_acceptance * (envelope_error + 3 * kUnit));
    if (flushed) rate_error = exact.expected_acceptance;

    ExpectClose(FromFixed(sums.d), std::abs(Clamped(exact.log_ratio)), log_ratio_error + kFixedStep,
                "D", row);
    ExpectClose(FromFixed(sums.log_envelope), Clamped(exact.log_envelope),
                envelope_error + kFixedStep, "log-envelope", row);
    if (std::isfinite(acceptance_error)) {
      ExpectClose(results.acceptance_probabilities[0], exact.acceptance_probability,
                  acceptance_error, "acceptance probability", row);
    } else {
      ExpectClose(results.acceptance_probabilities[0], 0, 0, "acceptance probability", row);
    }
    ExpectClose(FromFixed(sums.acceptance_probability), results.acceptance_probabilities[0],
                kFixedStep, "acceptance probability in the sum", row);
    ExpectClose(FromFixed(sums.residual_mass), std::fmax(0, exact.residual_mass),
                mass_error + kUnit + kFixedStep, "residual mass", row);
    ExpectClose(FromFixed(sums.expected_acceptance), std::fmin(1, exact.expected_acceptance),
                rate_error + kFixedStep, "expected acceptance", row);

    // Where the difference is taken, e^x - 1 - x is at least 0.05 and e^x a unit off; elsewhere it
    // is the product of a few roundings. The error of lw itself counts w - 1 times.
    const double ratio = std::exp(exact.log_ratio);
    const double k3 = exact.k3;
    const double k3_error = kSecondOrder * (4 * kUnit * (ratio + 1 + std::abs(exact.log_ratio)) *
                                                std::fmin(1, k3 / 0.05) +
                                            8 * kUnit * k3 + log_ratio_error * std::abs(ratio - 1));
    const double least_k3 = std::fmin(64, k3 - k3_error);
    const double most_k3 = std::fmin(64, k3 + k3_error);
    if (std::isfinite(exact.log_ratio) && exact.log_ratio < 88) {
      ExpectClose(FromFixed(sums.k3), (least_k3 + most_k3) / 2,
                  (most_k3 - least_k3) / 2 + kFixedStep, "k3", row);
    } else {
      EXPECT_EQ(FromFixed(sums.k3), 64) << "k3 in row " << row;
    }
    // A unit in the last place for each of the 2 k exponentials, a rounding for each difference and
    // each addition.
    const double both_masses = (1 - exact.residual_mass) + behavior_mass;
    ExpectClose(FromFixed(sums.total_variation), std::fmin(1, exact.total_variation),
                kSecondOrder * kUnit * (both_masses + (k + 1) * exact.total_variation) +
                    k * kSmallest + kFixedStep,
                "total variation", row);

    const bool accepted = results.decisions[0] == Decision::kAccepted;
    const double log_modified = accepted ? 0 : exact.log_ratio;
    ExpectClose(results.log_modified_ratios[0], log_modified, accepted ? 0 : log_ratio_error,
                "log modified ratio", row);
    ExpectClose(results.modified_ratios[0], std::exp(log_modified),
                accepted ? 0
                         : std::exp(log_modified) * kSecondOrder * (log_ratio_error + 2 * kUnit) +
                               kSmallest,
                "modified ratio", row);
    if (testing::Test::HasFailure()) return;
  }
}

TEST_P(ReferenceTest, AgreesOnRandomPositions) {
  std::mt19937_64 random(21);
  for (int slots = 1; slots <= 32 && !HasFailure(); ++slots) {
    const Packed packed(RandomPositions(random, slots, 300), 0,
                        {slots % 2 == 0 ? BlockEncoding::kFloat32 : BlockEncoding::kFixed16});
    for (const int top_k : {1, (slots + 1) / 2, slots}) {
      ExpectAgreement(backend(), {top_k, random(), true}, packed);
    }
  }
}

}  // namespace
}  // namespace sis
