#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "client/replicas/merged.h"

namespace sis {
namespace {

// What one replica counts: some of the reasons, some of the points, sums as servers have them.
v1::GetStepResponse RandomStep(std::mt19937& random) {
  v1::GetStepResponse step;
  for (int reason = v1::NEVER_ARRIVED; reason <= v1::INVALID_LOG_PROB; ++reason) {
    if (random() % 2 == 0) continue;
    v1::MissingTotals& missing = *step.add_missing();
    missing.set_reason(static_cast<v1::MissingReason>(reason));
    missing.set_positions(1 + random() % 100);
    step.mutable_totals()->set_missing(step.totals().missing() + missing.positions());
  }
  for (const uint32_t top_k : {1, 2, 4, 8, 16}) {
    if (random() % 2 == 0) continue;
    v1::PrefixPoint& point = *step.add_prefix_curve();
    point.set_top_k(top_k);
    point.set_positions(1 + random() % 100);
    point.set_residual_mass(std::ldexp(static_cast<double>(random()), -30));
    point.set_expected_acceptance(std::ldexp(static_cast<double>(random()), -30));
  }
  return step;
}

TEST(MergeStepsTest, ReplicasAddUpByReasonAndByK) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 100; ++trial) {
    std::vector<v1::GetStepResponse> parts(1 + random() % 5);
    std::ranges::generate(parts, [&] { return RandomStep(random); });
    std::map<int, uint64_t> missing;
    std::map<uint32_t, std::vector<double>> curve;
    for (const v1::GetStepResponse& part : parts) {
      for (const auto& of : part.missing()) missing[of.reason()] += of.positions();
      for (const auto& point : part.prefix_curve()) {
        std::vector<double>& sums = curve[point.top_k()];
        sums.resize(3);
        sums[0] += static_cast<double>(point.positions());
        sums[1] += point.residual_mass();
        sums[2] += point.expected_acceptance();
      }
    }
    const v1::GetStepResponse sum = Merged(parts);
    std::map<int, uint64_t> summed;
    std::map<uint32_t, std::vector<double>> summed_curve;
    uint64_t all = 0;
    for (const auto& of : sum.missing()) {
      summed[of.reason()] = of.positions();
      all += of.positions();
    }
    for (const auto& point : sum.prefix_curve()) {
      summed_curve[point.top_k()] = {static_cast<double>(point.positions()), point.residual_mass(),
                                     point.expected_acceptance()};
    }
    EXPECT_EQ(summed, missing);
    EXPECT_EQ(summed_curve, curve) << "to the last bit";
    EXPECT_EQ(all, sum.totals().missing());
    EXPECT_EQ(sum.missing_size(), missing.size());
    EXPECT_EQ(sum.prefix_curve_size(), curve.size());

    std::ranges::shuffle(parts, random);
    EXPECT_EQ(Merged(parts).SerializeAsString(), sum.SerializeAsString()) << "in any order";
  }
}

}  // namespace
}  // namespace sis
