#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/decide/dense/dense_row.h"

namespace sis {
namespace {

constexpr int kLanes = 64;  // running sums in a block: id mod 64 says which

// The terms of the columns [begin, end) of one block. Empty lanes count as 0.
float SumBlock(const LogitRow& row, int32_t begin, int32_t end, float reference) {
  float lanes[kLanes] = {};
  for (int32_t column = begin; column < end; ++column) {
    float& lane = lanes[(row.vocabulary_offset + column) % kLanes];
    lane = lane + Exp32(LogitAt(row, column) - reference);
  }
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] = lanes[lane] + lanes[lane + half];
  }
  return lanes[0];
}

}  // namespace

bool SumRowScalar(const LogitRow& row, ExpSum& sum) {
  sum = ExpSum();
  int32_t begin = 0;
  while (begin < row.width) {
    const int32_t id = row.vocabulary_offset + begin;
    const int32_t end = std::min(row.width, begin + kVocabularyBlock - id % kVocabularyBlock);
    float maximum = kMinusInfinity;
    for (int32_t column = begin; column < end; ++column) {
      const float logit = LogitAt(row, column);
      if (!(logit < std::numeric_limits<float>::infinity())) return false;
      maximum = std::max(maximum, logit);
    }
    if (maximum != kMinusInfinity) {
      const float reference = BlockReference(maximum);
      sum.AddBlock(reference, SumBlock(row, begin, end, reference));
    }
    begin = end;
  }
  return true;
}

double LogSumExpReference(const LogitRow& row) {
  double maximum = -std::numeric_limits<double>::infinity();
  for (int32_t column = 0; column < row.width; ++column) {
    maximum = std::max<double>(maximum, LogitAt(row, column));
  }
  if (std::isinf(maximum)) return maximum;
  double sum = 0;
  for (int32_t column = 0; column < row.width; ++column) {
    sum += std::exp(LogitAt(row, column) - maximum);
  }
  return maximum + std::log(sum);
}

}  // namespace sis
