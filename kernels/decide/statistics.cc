#include "kernels/decide/statistics.h"

#include <algorithm>

#include "kernels/numerics/log64.h"

namespace sis {
namespace {

// Returns the first bucket whose bound is at least x. The first bound is 2^first_exponent, and each
// is twice the previous one.
size_t PowerBucket(float x, int first_exponent) {
  size_t bucket = 0;
  float bound = std::ldexp(1.0f, first_exponent);
  for (; bucket < kPowerBounds && !(x <= bound); ++bucket) bound *= 2.0f;
  return bucket;
}

size_t AcceptanceBucket(float a) { return static_cast<size_t>(std::ceil(a * 16.0f)); }

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

void AddStatisticsOneByOne(const DecidedPositions& positions, Statistics& statistics) {
  for (size_t i = 0; i < positions.decisions.size(); ++i) {
    if (!positions.scored(i)) continue;
    const float log_ratio = positions.log_ratios[i];
    const float log_envelope = positions.log_envelopes[i];
    const float residual = ResidualMass({log_envelope, positions.covered_masses[i]});
    const float ratio = Exp32(log_ratio);
    ++statistics.abs_log_ratio[PowerBucket(std::abs(log_ratio), kFirstNatsExponent)];
    ++statistics.log_envelope[PowerBucket(log_envelope, kFirstNatsExponent)];
    ++statistics.residual_mass[PowerBucket(residual, kFirstMassExponent)];
    ++statistics.acceptance_probability[AcceptanceBucket(positions.acceptance_probabilities[i])];
    for (size_t bound = 0; bound < kRatioBounds.size(); ++bound) {
      const auto limit = static_cast<float>(kRatioBounds[bound]);
      statistics.ratios_beyond[bound] += limit < 1.0f ? ratio < limit : ratio > limit;
    }
    statistics.negative_log_envelope += Fixed(std::max(-log_envelope, 0.0f));
    const float advantage = positions.advantage(i);
    statistics.plain.Add(ratio, ratio, log_ratio, advantage);
    const float clipped = std::clamp(ratio, kClipLow, kClipHigh);
    statistics.clipped.Add(ratio, clipped, LogWeight(clipped, ratio, log_ratio), advantage);
    const bool accepted = positions.decisions[i] == Decision::kAccepted;
    statistics.applied.Add(ratio, accepted ? 1.0f : ratio, accepted ? 0.0f : log_ratio, advantage);
  }
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
