#include "kernels/decide/dense/dense.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"
#include "kernels/decide/dense/dense_row.h"
#include "kernels/testing/random_logits.h"

namespace sis {
namespace {

using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The bound of docs/dense_numerics.md, section 4, in nats.
constexpr double kBound = 36 * 0x1p-24;

// Runs a check on every instruction set that this machine has.
template <class Check>
void OnEveryTarget(const Check& check) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    check();
  }
  hwy::SetSupportedTargetsForTest(0);
}

testing::AssertionResult SameSum(const LogitRow& row) {
  ExpSum scalar;
  ExpSum simd;
  if (!SumRowScalar(row, scalar)) return testing::AssertionFailure() << "scalar refuses the row";
  if (!SumRow(row, simd)) return testing::AssertionFailure() << "SIMD refuses the row";
  if (scalar == simd) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "scalar " << scalar.reference << ", " << scalar.sums[0]
                                     << "; SIMD " << simd.reference << ", " << simd.sums[0];
}

TEST(DenseRow, TestsSeveralTargets) {
#if HWY_ARCH_X86
  EXPECT_GT(hwy::SupportedAndGeneratedTargets().size(), 1);
#endif
}

TEST(DenseRow, EveryTargetGivesTheBytesOfTheScalarSum) {
  OnEveryTarget([] {
    std::mt19937 random(1);
    for (const LogitType type : kLogitTypes) {
      for (const int32_t width : {1, 7, 63, 64, 65, 1023, 1024, 1025, 5000, 32000}) {
        for (const Shape shape : kShapes) {
          const size_t offset = random() % 65;
          LogitMatrix matrix(type, 2, width, offset);
          Fill(matrix, 2, shape, random);
          for (const size_t position : {0, 1}) {
            ASSERT_TRUE(SameSum(matrix.Row(position)))
                << Name(type) << ", width " << width << ", offset " << offset;
          }
        }
      }
    }
  });
}

TEST(DenseRow, EveryTargetGivesTheBytesOfTheScalarSumForLargeVocabularies) {
  OnEveryTarget([] {
    std::mt19937 random(2);
    for (const LogitType type : kLogitTypes) {
      for (const int32_t width : {151936, 262208}) {
        LogitMatrix matrix(type, 1, width, 2);
        Fill(matrix, 1, Shape::kNormal, random);
        ASSERT_TRUE(SameSum(matrix.Row(0))) << Name(type) << ", width " << width;
      }
    }
  });
}

// Every value of a half, each in a row of its own with neighbours that fix the reference.
TEST(DenseRow, ReadsEveryHalfAsTheScalarDoes) {
  OnEveryTarget([] {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const auto half = static_cast<uint16_t>(bits);
      std::byte bytes[34 * 2] = {};  // enough for a vector of any target
      for (size_t i = 0; i < sizeof(bytes); i += 2) std::memcpy(bytes + i, &half, 2);
      const LogitRow row{LogitType::kBfloat16, bytes, 34};
      const bool valid = LogitAt(row, 0) < kInfinity;
      ExpSum scalar;
      ExpSum simd;
      ASSERT_EQ(SumRowScalar(row, scalar), valid) << bits;
      ASSERT_EQ(SumRow(row, simd), valid) << bits;
      if (!valid) continue;
      ASSERT_EQ(scalar, simd) << bits;
    }
  });
}

// By float64 and the C library: what the sums approximate.
double LogSumExpReference(const LogitRow& row) {
  double maximum = -std::numeric_limits<double>::infinity();
  for (int32_t id = 0; id < row.vocabulary_size; ++id) {
    maximum = std::max<double>(maximum, LogitAt(row, id));
  }
  if (std::isinf(maximum)) return maximum;
  double sum = 0;
  for (int32_t id = 0; id < row.vocabulary_size; ++id) sum += std::exp(LogitAt(row, id) - maximum);
  return maximum + std::log(sum);
}

TEST(DenseRow, IsWithinTheBoundOfFloat64) {
  OnEveryTarget([] {
    std::mt19937 random(4);
    double worst = 0;
    for (const LogitType type : kLogitTypes) {
      for (const int32_t width : {1, 2, 1000, 1024, 32000, 151936}) {
        for (const Shape shape : kShapes) {
          LogitMatrix matrix(type, 1, width);
          Fill(matrix, 1, shape, random);
          ExpSum sum;
          ASSERT_TRUE(SumRow(matrix.Row(0), sum));
          const double reference = LogSumExpReference(matrix.Row(0));
          const double error = std::abs(LogSumExp(sum) - reference);
          // The last place of a float64 of this size is all that is above the bound.
          ASSERT_LE(error, kBound + std::abs(reference) * 0x1p-51)
              << Name(type) << ", width " << width;
          worst = std::max(worst, error);
        }
      }
    }
    testing::Test::RecordProperty("worst", std::to_string(worst));
  });
}

// References, block maxima and the exponential's limits meet here.
TEST(DenseRow, SpecialValues) {
  const float kMax = std::numeric_limits<float>::max();
  const std::vector<std::vector<float>> rows = {
      {0.0f},
      {-0.0f, 0.0f},
      {8.0f, -8.0f},
      {kMax},
      {kMax, kMax},
      {-kMax, -kMax},
      {kMax, -kMax, 0.0f},
      {-kMax, kMinusInfinity},
      {0x1p-149f, -0x1p-149f},
      {87.0f, 0.0f, -0.5f},
      {88.0f, 1.0f, std::nextafter(1.0f, 0.0f), 0.99f},
      {0x1p+26f, 0x1.fffffep+25f},
      {-1e4f, -1e4f + 1},
  };
  OnEveryTarget([&] {
    for (const std::vector<float>& values : rows) {
      for (const int32_t width : {static_cast<int32_t>(values.size()), 1024, 3000}) {
        LogitMatrix matrix(LogitType::kFloat32, 1, width);
        for (int32_t v = 0; v < width; ++v) matrix.Set(0, v, values[v % values.size()]);
        ASSERT_TRUE(SameSum(matrix.Row(0))) << values[0] << ", width " << width;
        ExpSum sum;
        ASSERT_TRUE(SumRow(matrix.Row(0), sum));
        const double reference = LogSumExpReference(matrix.Row(0));
        EXPECT_NEAR(LogSumExp(sum), reference, kBound + std::abs(reference) * 0x1p-51) << values[0];
      }
    }
  });
}

TEST(DenseRow, FindsEveryBadLogit) {
  OnEveryTarget([] {
    for (const LogitType type : kLogitTypes) {
      // A NaN whose low bits are set as well as those of the C library.
      const auto other_nan = std::bit_cast<float>(0x7fc001ffu);
      for (const float bad : {kNan, -kNan, other_nan, -other_nan, kInfinity}) {
        for (const float others : {0.0f, kMinusInfinity}) {
          const int32_t width = kVocabularyBlock + 76;  // a whole block, and a part of one
          LogitMatrix matrix(type, 1, width);
          for (int32_t v = 0; v < width; ++v) matrix.Set(0, v, others);
          for (int32_t v = 0; v < width; v += 1 + v % 7) {
            matrix.Set(0, v, bad);
            ExpSum sum;
            ASSERT_FALSE(SumRow(matrix.Row(0), sum)) << Name(type) << ", column " << v;
            ASSERT_FALSE(SumRowScalar(matrix.Row(0), sum)) << Name(type) << ", column " << v;
            matrix.Set(0, v, others);
          }
          ExpSum sum;
          ASSERT_TRUE(SumRow(matrix.Row(0), sum));
          EXPECT_EQ(LogSumExp(sum) == kMinusInfinity, others == kMinusInfinity);
        }
      }
    }
  });
}

// log p of every token of the vocabulary against float64.
TEST(Dense, AgreesWithFloat64) {
  for (const LogitType type : kLogitTypes) {
    for (const int32_t vocabulary_size : {1, 7, 1023, 32000}) {
      std::mt19937 random(12);
      LogitMatrix matrix(type, 3, vocabulary_size, 6);
      Fill(matrix, 3, Shape::kNormal, random);
      std::vector<int32_t> ids(vocabulary_size);
      std::iota(ids.begin(), ids.end(), 0);
      std::vector<float> log_probs(ids.size());
      for (size_t i = 0; i < 3; ++i) {
        const LogitRow row = matrix.Row(i);
        const absl::StatusOr<double> log_sum_exp = LogSumExpOfRow(row, 0);
        ASSERT_TRUE(log_sum_exp.ok());
        const double reference = LogSumExpReference(row);
        ASSERT_NEAR(*log_sum_exp, reference, kBound);
        GatherLogProbs(row, *log_sum_exp, ids, log_probs);
        for (int32_t id = 0; id < vocabulary_size; ++id) {
          const double log_prob = matrix.Get(i, id) - reference;
          ASSERT_NEAR(log_probs[id], log_prob, kBound + std::abs(log_prob) * 0x1p-24);
        }
      }
    }
  }
}

// The bytes that numerics.md gives gathered logits with this log-sum-exp.
TEST(Dense, LogProbsAreRoundedOnce) {
  std::mt19937 random(15);
  LogitMatrix matrix(LogitType::kFloat32, 1, 3000);
  Fill(matrix, 1, Shape::kNormal, random);
  const double log_sum_exp = LogSumExpOfRow(matrix.Row(0), 0).value();
  for (int32_t id = 0; id < 3000; ++id) {
    float log_prob;
    GatherLogProbs(matrix.Row(0), log_sum_exp, {&id, 1}, {&log_prob, 1});
    ASSERT_EQ(log_prob, static_cast<float>(double{matrix.Get(0, id)} - log_sum_exp));
  }
}

TEST(Dense, MaskedTokensAndUnusedSlotsAreImpossible) {
  LogitMatrix matrix(LogitType::kBfloat16, 1, 5);
  for (int32_t v = 0; v < 5; ++v) matrix.Set(0, v, v < 2 ? kMinusInfinity : 1.0f);
  const double log_sum_exp = LogSumExpOfRow(matrix.Row(0), 0).value();
  EXPECT_NEAR(log_sum_exp, 1 + std::log(3.0), kBound);
  const std::vector<int32_t> ids = {0, 1, -1, 5};
  std::vector<float> log_probs(ids.size());
  GatherLogProbs(matrix.Row(0), log_sum_exp, ids, log_probs);
  EXPECT_EQ(log_probs, std::vector<float>(ids.size(), kMinusInfinity));
}

TEST(Dense, ErrorsNamePositionAndId) {
  for (const LogitType type : kLogitTypes) {
    for (const float bad : {kNan, kInfinity}) {
      std::mt19937 random(21);
      LogitMatrix matrix(type, 2, 3000);
      Fill(matrix, 2, Shape::kNormal, random);
      matrix.Set(1, 2345, bad);
      const absl::Status status = LogSumExpOfRow(matrix.Row(1), 103).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), HasSubstr("position 103, vocabulary id 2345: "));
      EXPECT_THAT(std::string(status.message()), HasSubstr(std::isnan(bad) ? "nan" : "inf"));
    }
  }
}

// Two equal logits of 3e38 would have a log-prob of 0 each.
TEST(Dense, LogitsWhoseLogProbsRoundingTakesAreAnError) {
  for (const LogitType type : kLogitTypes) {
    for (const float logit : {0x1p39f, 0x1p41f, 3e38f, -0x1p39f, -0x1p41f, -3e38f}) {
      LogitMatrix matrix(type, 1, 2000);
      for (int32_t v = 0; v < 2000; ++v) matrix.Set(0, v, logit);
      const absl::StatusOr<double> log_sum_exp = LogSumExpOfRow(matrix.Row(0), 8);
      if (std::abs(logit) > 0x1p40) {
        EXPECT_EQ(log_sum_exp.status().code(), absl::StatusCode::kInvalidArgument) << logit;
        EXPECT_THAT(std::string(log_sum_exp.status().message()),
                    HasSubstr("logits at position 8: the log-sum-exp "));
        continue;
      }
      ASSERT_TRUE(log_sum_exp.ok()) << log_sum_exp.status();
      const std::vector<int32_t> ids = {0, 1, 1999};
      std::vector<float> log_probs(ids.size());
      GatherLogProbs(matrix.Row(0), *log_sum_exp, ids, log_probs);
      for (const float log_prob : log_probs) {
        EXPECT_NEAR(log_prob, -std::log(2000.0), 0x1p-11) << logit;
      }
    }
  }
}

TEST(Dense, AllMinusInfinityIsAnError) {
  LogitMatrix matrix(LogitType::kBfloat16, 1, 2000);
  for (int32_t v = 0; v < 2000; ++v) matrix.Set(0, v, kMinusInfinity);
  EXPECT_EQ(LogSumExpOfRow(matrix.Row(0), 8).status(),
            absl::InvalidArgumentError("logits at position 8: all are -inf"));
}

}  // namespace
}  // namespace sis
