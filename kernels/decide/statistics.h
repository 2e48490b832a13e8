// Distributions of the values of decided positions, and effects of corrections on their ratios
// (docs/numerics.md, section 11). All are integers, so neither the order of the positions nor their
// batches matter.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/decide/decide.h"
#include "kernels/numerics/sums.h"

namespace sis {

// A value counts in the first bucket whose upper bound it does not exceed. Bounds are consecutive
// powers of two; the last bucket has no bound.
inline constexpr size_t kPowerBounds = 15;
inline constexpr int kFirstNatsExponent = -10;  // of |log w| and log M: 2^-10 to 2^4
inline constexpr int kFirstMassExponent = -14;  // of xi: 2^-14 to 2^0
// Number of bounds of a: 0, 1/16, ..., 1.
inline constexpr size_t kAcceptanceBounds = 17;

// Return the upper bounds of all buckets except the last, for display.
std::vector<double> PowerBounds(int first_exponent);
std::vector<double> AcceptanceBounds();

// Bounds for counting ratios: ratios below each bound < 1, and above each bound > 1. Compared in
// float32.
inline constexpr std::array kRatioBounds = {0.5, 0.8, 1.2, 1.28, 2.0, 5.0};
// The clip of the correction "clipped".
inline constexpr float kClipLow = static_cast<float>(kRatioBounds[1]);
inline constexpr float kClipHigh = static_cast<float>(kRatioBounds[2]);

// Larger weights, and larger products with advantages, count as this value.
inline constexpr float kLargestCountedWeight = 1024.0f;

// Returns x in units of 2^-kCountedWeightBits, rounded to nearest, ties to even. x is in [0, 2^20].
inline constexpr int kCountedWeightBits = 16;
inline int64_t CountedWeight(float x) { return std::llrintf(x * 0x1p16f); }
inline double FromCountedWeight(int64_t sum) { return static_cast<double>(sum) * 0x1p-16; }

// Effect of one correction on the ratios (v1::CorrectionTotals).
struct CorrectionSums {
  int64_t positions = 0;
  int64_t touched = 0;
  int64_t zeroed = 0;
  int64_t weight = 0;          // in units of CountedWeight, like the next
  int64_t weight_squared = 0;  // of weights limited to kLargestCountedWeight
  int64_t abs_log_weight = 0;  // in units of Fixed
  int64_t gradient_mass = 0;   // in units of CountedWeight

  // Adds a position. `advantage` is 0 if there is none.
  void Add(float ratio, float weight, float log_weight, float advantage);

  CorrectionSums& operator+=(const CorrectionSums& other) { return AddEach(other, *this); }
  friend bool operator==(const CorrectionSums&, const CorrectionSums&) = default;
};

// Returns the logarithm, as float32, of a weight that is not the ratio itself; 0 for a weight of 0.
float LogOfWeight(float weight);

// Counts by bucket. There is one more bucket than bounds.
template <size_t kBounds>
using BucketCounts = std::array<int64_t, kBounds + 1>;

// Statistics of scored positions.
struct Statistics {
  BucketCounts<kPowerBounds> abs_log_ratio = {};
  BucketCounts<kPowerBounds> log_envelope = {};
  BucketCounts<kPowerBounds> residual_mass = {};
  BucketCounts<kAcceptanceBounds> acceptance_probability = {};
  std::array<int64_t, kRatioBounds.size()> ratios_beyond = {};
  // The sum of -log M where it is negative, in units of Fixed.
  int64_t negative_log_envelope = 0;
  CorrectionSums plain;    // w
  CorrectionSums clipped;  // w within [kClipLow, kClipHigh]
  CorrectionSums applied;  // the modified ratio

  Statistics& operator+=(const Statistics& other) { return AddEach(other, *this); }
  friend bool operator==(const Statistics&, const Statistics&) = default;
};

// n positions with the results of Backend::Evaluate. Only positions with one of the first three
// decisions count; others may have any values.
struct DecidedPositions {
  std::span<const Decision> decisions;              // [n]
  std::span<const float> log_ratios;                // [n], log w
  std::span<const float> log_envelopes;             // [n], log M
  std::span<const float> covered_masses;            // [n]
  std::span<const float> acceptance_probabilities;  // [n]
  std::span<const float> advantages = {};           // [n], or empty

  bool scored(size_t i) const { return decisions[i] <= Decision::kOutsideTopK; }
  float advantage(size_t i) const { return advantages.empty() ? 0.0f : advantages[i]; }
};

// The modified ratios of n positions; positions that don't count may have any value.
struct ModifiedRatios {
  std::span<const float> ratios;      // [n]
  std::span<const float> log_ratios;  // [n]
};

// Adds the positions. `applied` gets ratios of 1 where accepted and of w elsewhere.
void AddStatistics(const DecidedPositions& positions, Statistics& statistics);

// Returns the sums of these modified ratios.
CorrectionSums SumsOf(const DecidedPositions& positions, const ModifiedRatios& modified);
// Returns the sums of weights [n] that are not modified ratios, for instance an algorithm's
// coefficients.
CorrectionSums SumsOf(const DecidedPositions& positions, std::span<const float> weights);
// Returns the sum of log w, in units of Fixed.
int64_t SumOfLogRatios(const DecidedPositions& positions);

// Returns the sums of weights that are 0 at every position. `plain` holds the sums of w.
CorrectionSums ZeroEverywhere(const CorrectionSums& plain);

}  // namespace sis
