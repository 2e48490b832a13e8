// Sums of e^logit over parts of a vocabulary that merge exactly, in any order
// (docs/dense_numerics.md, sections 2 and 3).
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/decide/decide.h"
#include "kernels/numerics/host_device.h"

namespace sis {

// Columns of the vocabulary whose terms are added as float32 before the sum becomes an integer.
// Blocks begin at ids that are multiples of it, wherever a shard begins.
inline constexpr int kVocabularyBlock = 1024;

// References are multiples of this, in nats: so few differ that each can keep an integer sum of its
// own.
inline constexpr float kReferenceStep = 8.0f;

// What the terms of a block whose largest logit is `maximum` are taken relative to: the least
// multiple of 8 that is no smaller. maximum must be finite.
SIS_HOST_DEVICE inline float BlockReference(float maximum) {
  // From 2^26 on all floats are multiples of 8, and below an int32 holds the quotient.
  if (!(maximum < 0x1p26f && maximum > -0x1p26f)) return maximum;
  const float quotient = Flush(maximum) * (1.0f / kReferenceStep);
  const auto truncated = static_cast<float>(static_cast<int32_t>(quotient));
  return (quotient > truncated ? truncated + 1.0f : truncated) * kReferenceStep;
}

// The sum of e^logit over columns: e^reference * 2^-36 * (sums[0] + sums[1] e^-8 + sums[2] e^-16 +
// ...).
struct ExpSum {
  // What lies further below the largest logit weighs less than 2^-39 of the sum, for 2^18 columns.
  static constexpr int kReferences = 6;

  float reference = kMinusInfinity;  // -inf: no column was above -inf
  int64_t sums[kReferences] = {};

  // Adds a block's terms, summed relative to block_reference, a BlockReference. The largest term is
  // at least e^-8, so block_sum is a multiple of 2^-36; it must be at most 1024. Up to 2^17 blocks
  // can't overflow.
  SIS_HOST_DEVICE void AddBlock(float block_reference, float block_sum) {
    ExpSum block;
    block.reference = block_reference;
    block.sums[0] = static_cast<int64_t>(block_sum * 0x1p36f);
    Merge(block);
  }

  // Adds the sum over other columns: associative and commutative, to the bit.
  SIS_HOST_DEVICE void Merge(const ExpSum& other) {
    if (other.reference == kMinusInfinity) return;
    if (reference < other.reference) {
      const int distance = StepsBetween(reference, other.reference);
      for (int i = kReferences - 1; i >= 0; --i) sums[i] = i >= distance ? sums[i - distance] : 0;
      reference = other.reference;
    }
    const int distance = StepsBetween(other.reference, reference);
    for (int i = distance; i < kReferences; ++i) sums[i] += other.sums[i - distance];
  }

  friend bool operator==(const ExpSum&, const ExpSum&) = default;

 private:
  // How many references lie between, at most kReferences.
  SIS_HOST_DEVICE static int StepsBetween(float low, float high) {
    const float steps = (high - low) * (1.0f / kReferenceStep);
    return steps < kReferences ? static_cast<int>(steps) : kReferences;
  }
};

// ln x, within 2^-50 of max(1, |ln x|), by float64 operations that every machine rounds alike. x
// must be positive, finite and normal.
SIS_HOST_DEVICE inline double Log64(double x) {
  constexpr uint64_t kSqrtHalf = 0x3fe6a09e667f3bcd;  // the bits of 1/sqrt(2)
  const auto bits = std::bit_cast<uint64_t>(x);
  const int64_t n = static_cast<int64_t>(bits - kSqrtHalf) >> 52;
  // In [1/sqrt(2), sqrt(2)); ln z = 2 atanh(f).
  const auto z = std::bit_cast<double>(bits - (static_cast<uint64_t>(n) << 52));
  const double f = (z - 1.0) / (z + 1.0);
  const double g = f * f;
  double p = 1.0 / 19;
  p = p * g + 1.0 / 17;
  p = p * g + 1.0 / 15;
  p = p * g + 1.0 / 13;
  p = p * g + 1.0 / 11;
  p = p * g + 1.0 / 9;
  p = p * g + 1.0 / 7;
  p = p * g + 1.0 / 5;
  p = p * g + 1.0 / 3;
  p = p * g + 1.0;
  constexpr double kLn2 = 0x1.62e42fefa39efp-1;
  return static_cast<double>(n) * kLn2 + (2.0 * f) * p;
}

// The log-sum-exp over the columns that were added; -inf if none was above -inf.
SIS_HOST_DEVICE inline double LogSumExp(const ExpSum& sum) {
  if (sum.reference == kMinusInfinity) return sum.reference;
  constexpr double kExpMinusStep = 0x1.5fc21041027adp-12;  // e^-8
  double total = 0.0;
  for (int i = ExpSum::kReferences - 1; i >= 0; --i) {
    total = total * kExpMinusStep + static_cast<double>(sum.sums[i]);
  }
  return static_cast<double>(sum.reference) + Log64(total * 0x1p-36);
}

// log p of a token, exact up to the error of log_sum_exp and one rounding.
SIS_HOST_DEVICE inline float LogProbOfLogit(float logit, double log_sum_exp) {
  return Flush(static_cast<float>(static_cast<double>(logit) - log_sum_exp));
}

}  // namespace sis
