#include "kernels/decide/statistics.h"

#include <algorithm>

#include "kernels/numerics/log64.h"

namespace sis {
namespace {

// Returns the logarithm of the weight: log_ratio if the weight is the ratio.
float LogWeight(float weight, float ratio, float log_ratio) {
  if (weight == ratio) return log_ratio;
  return LogOfWeight(weight);
}

}  // namespace

std::vector<double> PowerBounds(int first_exponent) {
  std::vector<double> bounds(kPowerBounds);
  for (size_t i = 0; i < kPowerBounds; ++i) {
    bounds[i] = std::ldexp(1.0, first_exponent + static_cast<int>(i));
  }
  return bounds;
}

std::vector<double> AcceptanceBounds() {
  std::vector<double> bounds(kAcceptanceBounds);
  for (size_t i = 0; i < kAcceptanceBounds; ++i) bounds[i] = static_cast<double>(i) / 16;
  return bounds;
}

float LogOfWeight(float weight) {
  if (weight == 0.0f) return 0.0f;
  return Flush(static_cast<float>(Log64(static_cast<double>(weight))));
}

void CorrectionSums::Add(float ratio, float weight, float log_weight, float advantage) {
  const float counted = std::min(weight, kLargestCountedWeight);
  ++positions;
  touched += weight != ratio;
  zeroed += weight == 0.0f;
  this->weight += CountedWeight(counted);
  weight_squared += CountedWeight(counted * counted);
  if (weight != 0.0f) abs_log_weight += Fixed(std::abs(log_weight));
  gradient_mass += CountedWeight(std::min(weight * std::abs(advantage), kLargestCountedWeight));
}

CorrectionSums SumsOf(const DecidedPositions& positions, const ModifiedRatios& modified) {
  CorrectionSums sums;
  for (size_t i = 0; i < positions.decisions.size(); ++i) {
    if (!positions.scored(i)) continue;
    sums.Add(Exp32(positions.log_ratios[i]), modified.ratios[i], modified.log_ratios[i],
             positions.advantage(i));
  }
  return sums;
}

CorrectionSums SumsOf(const DecidedPositions& positions, std::span<const float> weights) {
  CorrectionSums sums;
  for (size_t i = 0; i < positions.decisions.size(); ++i) {
    if (!positions.scored(i)) continue;
    const float ratio = Exp32(positions.log_ratios[i]);
    sums.Add(ratio, weights[i], LogWeight(weights[i], ratio, positions.log_ratios[i]),
             positions.advantage(i));
  }
  return sums;
}

int64_t SumOfLogRatios(const DecidedPositions& positions) {
  int64_t sum = 0;
  for (size_t i = 0; i < positions.decisions.size(); ++i) {
    if (positions.scored(i)) sum += Fixed(positions.log_ratios[i]);
  }
  return sum;
}

CorrectionSums ZeroEverywhere(const CorrectionSums& plain) {
  return {.positions = plain.positions,
          .touched = plain.positions - plain.zeroed,
          .zeroed = plain.positions};
}

}  // namespace sis
