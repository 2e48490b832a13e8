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
#include "kernels/decide/scalar_backend.h"
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
  if (!SumRowSimd(row, simd)) return testing::AssertionFailure() << "SIMD refuses the row";
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
          LogitMatrix matrix(type, 2, width, offset, random() % 9);
          Fill(matrix, 2, shape, random);
          for (const size_t position : {0, 1}) {
            LogitRow row = matrix.Row(position);
            ASSERT_TRUE(SameSum(row)) << Name(type) << ", width " << width << ", offset " << offset;
            row.vocabulary_offset = static_cast<int32_t>(random() % 5000);
            ASSERT_TRUE(SameSum(row)) << Name(type) << ", width " << width << ", vocabulary offset "
                                      << row.vocabulary_offset;
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

// Every value of the half types, each in a row of its own with a neighbour that fixes the
// reference.
TEST(DenseRow, ReadsEveryHalfAsTheScalarDoes) {
  OnEveryTarget([] {
    for (const LogitType type : {LogitType::kFloat16, LogitType::kBfloat16}) {
      for (uint32_t bits = 0; bits < 0x10000; ++bits) {
        const auto half = static_cast<uint16_t>(bits);
        std::byte bytes[34 * 2] = {};  // enough for a vector of any target
        for (size_t i = 0; i < sizeof(bytes); i += 2) std::memcpy(bytes + i, &half, 2);
        const LogitRow row{type, bytes, 34, 0};
        const bool valid = LogitAt(row, 0) < kInfinity;
        ExpSum scalar;
        ExpSum simd;
        ASSERT_EQ(SumRowScalar(row, scalar), valid) << Name(type) << ' ' << bits;
        ASSERT_EQ(SumRowSimd(row, simd), valid) << Name(type) << ' ' << bits;
        if (!valid) continue;
        ASSERT_EQ(scalar, simd) << Name(type) << ' ' << bits;
      }
    }
  });
}

TEST(Float16, KnownValues) {
  EXPECT_EQ(DecodeFloat16(0x3c00), 1.0f);
  EXPECT_EQ(DecodeFloat16(0xc000), -2.0f);
  EXPECT_EQ(DecodeFloat16(0x7bff), 65504.0f);
  EXPECT_EQ(DecodeFloat16(0x0001), 0x1p-24f);
  EXPECT_EQ(DecodeFloat16(0x83ff), -0x1.ff8p-15f);
  EXPECT_EQ(DecodeFloat16(0x0400), 0x1p-14f);
  EXPECT_EQ(DecodeFloat16(0xfc00), -kInfinity);
  EXPECT_TRUE(std::signbit(DecodeFloat16(0x8000)));
  EXPECT_TRUE(std::isnan(DecodeFloat16(0x7c01)));
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
          ASSERT_TRUE(SumRowSimd(matrix.Row(0), sum));
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
        ASSERT_TRUE(SumRowSimd(matrix.Row(0), sum));
        const double reference = LogSumExpReference(matrix.Row(0));
        EXPECT_NEAR(LogSumExp(sum), reference, kBound + std::abs(reference) * 0x1p-51) << values[0];
      }
    }
  });
}

TEST(DenseRow, FindsEveryBadLogit) {
  OnEveryTarget([] {
    for (const LogitType type : kLogitTypes) {
      for (const float bad : {kNan, -kNan, kInfinity}) {
        for (const float others : {0.0f, kMinusInfinity}) {
          const int32_t width = 2500;
          LogitMatrix matrix(type, 1, width);
          for (int32_t v = 0; v < width; ++v) matrix.Set(0, v, others);
          for (int32_t v = 0; v < width; v += 1 + v % 7) {
            matrix.Set(0, v, bad);
            ExpSum sum;
            ASSERT_FALSE(SumRowSimd(matrix.Row(0), sum)) << Name(type) << ", column " << v;
            ASSERT_FALSE(SumRowScalar(matrix.Row(0), sum)) << Name(type) << ", column " << v;
            matrix.Set(0, v, others);
          }
          ExpSum sum;
          ASSERT_TRUE(SumRowSimd(matrix.Row(0), sum));
          EXPECT_EQ(LogSumExp(sum) == kMinusInfinity, others == kMinusInfinity);
        }
      }
    }
  });
}

struct Problem {
  Problem(LogitType type, int32_t vocabulary, int slots, size_t positions, uint32_t seed)
      : random(seed),
        matrix(type, positions, vocabulary, 6, 10),
        records((Fill(matrix, positions, Shape::kNormal, random), matrix), positions, slots,
                random),
        n(positions) {}

  // The result by shards with these first columns (and 0), merged in a shuffled order.
  absl::Status ByShards(std::vector<int32_t> bounds, const DenseParameters& parameters,
                        DenseResults& results) {
    bounds.push_back(matrix.width());
    std::vector<PartialStorage> partials;
    int32_t begin = 0;
    for (const int32_t end : bounds) {
      partials.emplace_back(n, records.slots);
      absl::Status status = ReduceShard(matrix.Shard(begin, end), records.View(), parameters,
                                        partials.back().partial);
      if (!status.ok()) return status;
      begin = end;
    }
    std::vector<size_t> order(partials.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::shuffle(order, random);
    DensePartial& into = partials[order[0]].partial;
    for (size_t i = 1; i < order.size(); ++i) MergeShard(partials[order[i]].partial, into);
    return FinishShards(into, matrix.width(), records.View(), parameters, results.View());
  }

  std::mt19937 random;
  LogitMatrix matrix;
  DenseRecords records;
  size_t n;
};

TEST(Dense, ShardsAtBlocksGiveTheUnshardedBytes) {
  for (const LogitType type : kLogitTypes) {
    Problem problem(type, 32000, 20, 6, 8);
    const DenseParameters parameters{.slots = 20, .top_k = 20};
    DenseResults whole(problem.n);
    ASSERT_TRUE(
        ReduceLogits(problem.matrix.View(), problem.records.View(), parameters, whole.View()).ok());
    for (const std::vector<int32_t>& bounds :
         {std::vector<int32_t>{}, {1024}, {16384}, {1024, 5120, 31744}, {4096, 4096, 8192}}) {
      DenseResults sharded(problem.n);
      ASSERT_TRUE(problem.ByShards(bounds, parameters, sharded).ok());
      EXPECT_TRUE(sharded == whole) << Name(type) << ", " << bounds.size() + 1 << " shards";
    }
  }
}

TEST(Dense, OtherShardsAreWithinTwiceTheBound) {
  for (const LogitType type : kLogitTypes) {
    Problem problem(type, 5000, 20, 30, 9);
    const DenseParameters parameters{.slots = 20, .top_k = 20};
    DenseResults whole(problem.n);
    ASSERT_TRUE(
        ReduceLogits(problem.matrix.View(), problem.records.View(), parameters, whole.View()).ok());
    for (int trial = 0; trial < 20; ++trial) {
      std::vector<int32_t> bounds(1 + trial % 8);
      for (int32_t& bound : bounds) bound = static_cast<int32_t>(problem.random() % 5001);
      // An edge on each side of a recorded token.
      if (trial % 2 == 0) bounds[0] = problem.records.ids[0];
      if (trial % 4 == 0) bounds.push_back(problem.records.ids[0] + 1);
      std::ranges::sort(bounds);
      DenseResults sharded(problem.n);
      ASSERT_TRUE(problem.ByShards(bounds, parameters, sharded).ok());
      for (size_t i = 0; i < problem.n; ++i) {
        ASSERT_NEAR(sharded.log_sum_exps[i], whole.log_sum_exps[i], 2 * kBound);
        // Slots and the sampled token are found exactly, whichever shard holds them: only the sum
        // differs.
        const double step = std::abs(whole.sampled[i]) * 0x1p-23;
        ASSERT_NEAR(sharded.sampled[i], whole.sampled[i], 2 * kBound + step);
        ASSERT_NEAR(sharded.envelopes[i], whole.envelopes[i], 2 * kBound + 64 * 0x1p-23);
        ASSERT_NEAR(sharded.masses[i], whole.masses[i], 2 * kBound + 60 * 0x1p-24);
      }
    }
  }
}

TEST(Dense, ATokenAtAnyPlaceOfAnyShardIsFound) {
  const int32_t vocabulary = 2200;
  LogitMatrix matrix(LogitType::kFloat32, 1, vocabulary);
  for (int32_t v = 0; v < vocabulary; ++v) matrix.Set(0, v, static_cast<float>(v) * 0x1p-10f);
  const DenseParameters parameters{.slots = 1, .top_k = 1};
  for (const int32_t bound : {1, 7, 1000, 1024, 1025, 2199}) {
    for (int32_t id : {0, bound - 1, bound, std::min(bound + 1, vocabulary - 1), vocabulary - 1}) {
      const std::vector<int32_t> ids = {id};
      const std::vector<float> log_probs = {-1.0f};
      const DenseRecordView records{ids, ids, log_probs};
      PartialStorage low(1, 1);
      PartialStorage high(1, 1);
      ASSERT_TRUE(ReduceShard(matrix.Shard(0, bound), records, parameters, low.partial).ok());
      ASSERT_TRUE(
          ReduceShard(matrix.Shard(bound, vocabulary), records, parameters, high.partial).ok());
      const float logit = matrix.Get(0, id);
      EXPECT_EQ(low.slot_logits[0], id < bound ? logit : kMinusInfinity);
      EXPECT_EQ(low.sampled[0], id < bound ? logit : kMinusInfinity);
      EXPECT_EQ(high.slot_logits[0], id < bound ? kMinusInfinity : logit);
      EXPECT_EQ(high.sampled[0], id < bound ? kMinusInfinity : logit);
    }
  }
}

// log p of every token of the vocabulary against float64, through a record of all tokens in turn.
TEST(Dense, AgreesWithFloat64) {
  for (const LogitType type : kLogitTypes) {
    for (const int32_t vocabulary : {1, 7, 1023, 32000}) {
      Problem problem(type, vocabulary, 20, 9, 12);
      for (const int top_k : {1, 7, 20}) {
        const DenseParameters parameters{.slots = 20, .top_k = top_k};
        DenseResults results(problem.n);
        ASSERT_TRUE(
            ReduceLogits(problem.matrix.View(), problem.records.View(), parameters, results.View())
                .ok());
        for (size_t i = 0; i < problem.n; ++i) {
          const double log_sum_exp = LogSumExpReference(problem.matrix.Row(i));
          double envelope = -HUGE_VAL;
          double mass = 0;
          for (int slot = 0; slot < top_k; ++slot) {
            const int32_t id = problem.records.ids[i * 20 + slot];
            if (id == -1) continue;
            const double log_prob = problem.matrix.Get(i, id) - log_sum_exp;
            envelope = std::max(envelope, log_prob - problem.records.log_probs[i * 20 + slot]);
            mass += std::exp(log_prob);
          }
          const double sampled =
              problem.matrix.Get(i, problem.records.sampled_ids[i]) - log_sum_exp;
          ASSERT_NEAR(results.log_sum_exps[i], log_sum_exp, kBound);
          ASSERT_NEAR(results.sampled[i], sampled, kBound + std::abs(sampled) * 0x1p-24);
          ASSERT_NEAR(results.envelopes[i], envelope, kBound + 64 * 0x1p-23);
          ASSERT_NEAR(results.masses[i], mass, kBound + 60 * 0x1p-24);
        }
      }
    }
  }
}

// REDUCED by this kernel and GATHERED from the same log-probs: the same decisions, outputs and
// sums.
TEST(Dense, DecidesAsTheGatheredLogProbsDo) {
  for (const LogitType type : kLogitTypes) {
    const int slots = 20;
    Problem problem(type, 3000, slots, 400, 15);
    const size_t n = problem.n;
    DenseRecords& records = problem.records;
    ASSERT_TRUE(ValidateRecords({records.sampled_ids, records.sampled_log_probs, records.ids,
                                 records.log_probs},
                                slots, 3000, 0, records.ranks)
                    .ok());
    for (const int top_k : {3, slots}) {
      DenseResults results(n);
      ASSERT_TRUE(ReduceLogits(problem.matrix.View(), records.View(),
                               {.slots = slots, .top_k = top_k}, results.View())
                      .ok());
      std::vector<float> gathered(n * slots, kNan);
      for (size_t i = 0; i < n * slots; ++i) {
        if (records.ids[i] == -1) continue;
        const double logit = problem.matrix.Get(i / slots, records.ids[i]);
        gathered[i] = static_cast<float>(logit - results.log_sum_exps[i / slots]);
      }
      const BehaviorView behavior{records.log_probs, records.sampled_log_probs, records.ranks};
      struct Decided {
        explicit Decided(size_t n) : decisions(n), acceptance(n), ratios(n) {}
        std::vector<Decision> decisions;
        std::vector<float> acceptance;
        std::vector<float> ratios;
        Sums sums;
      };
      const auto decide = [&](const CurrentView& current) {
        Decided decided(n);
        EXPECT_TRUE(ValidateCurrent(behavior, current, slots, 0).ok());
        const Segment segment{.sequence_key = 99,
                              .first_position = 0,
                              .behavior = behavior,
                              .current = current,
                              .output = {decided.decisions, decided.acceptance, {}, decided.ratios},
                              .sums = &decided.sums};
        ScalarBackend().Evaluate({.slots = slots, .top_k = top_k, .draw = 5}, {&segment, 1});
        return decided;
      };
      const Decided by_gathered = decide({.sampled_log_probs = results.sampled,
                                          .log_probs = gathered,
                                          .log_envelopes = {},
                                          .covered_masses = {}});
      const Decided by_reduced = decide({.sampled_log_probs = results.sampled,
                                         .log_probs = {},
                                         .log_envelopes = results.envelopes,
                                         .covered_masses = results.masses});
      EXPECT_EQ(by_gathered.decisions, by_reduced.decisions);
      EXPECT_EQ(by_gathered.acceptance, by_reduced.acceptance);
      EXPECT_EQ(by_gathered.ratios, by_reduced.ratios);
      EXPECT_EQ(by_gathered.sums, by_reduced.sums);
      // log p(y) comes from the same logits as the slots, so no ratio exceeds the envelope.
      EXPECT_EQ(by_reduced.sums.envelope_violations, 0);
      EXPECT_GT(by_reduced.sums.accepted, 0);
      EXPECT_GT(by_reduced.sums.rejected, 0);
      EXPECT_GT(by_reduced.sums.outside_top_k, 0);
    }
  }
}

// What GatherLogits gives, reduced, is what ReduceLogits gives at once; and unused slots are -inf.
TEST(Dense, GatheredLogitsReduceToTheSameBytes) {
  for (const LogitType type : kLogitTypes) {
    for (const int top_k : {1, 7, 20}) {
      Problem problem(type, 3000, 20, 30, 12);
      DenseResults reduced(problem.n);
      ASSERT_TRUE(ReduceLogits(problem.matrix.View(), problem.records.View(),
                               {.slots = 20, .top_k = top_k}, reduced.View())
                      .ok());
      DenseResults results(problem.n);
      results.log_sum_exps = reduced.log_sum_exps;
      std::vector<float> log_probs(problem.n * 20);
      ASSERT_TRUE(GatherLogits(problem.matrix.View(), problem.records.sampled_ids,
                               problem.records.ids, 20, 0, {results.sampled, log_probs})
                      .ok());
      for (size_t i = 0; i < problem.n; ++i) {
        EnvelopeAccumulator accumulator;
        for (int slot = 0; slot < 20; ++slot) {
          const size_t at = i * 20 + slot;
          if (slot < top_k) accumulator.Add(problem.records.log_probs[at], log_probs[at]);
          ASSERT_EQ(problem.records.ids[at] == -1, log_probs[at] == kMinusInfinity);
        }
        results.envelopes[i] = accumulator.Finish().log_envelope;
        results.masses[i] = accumulator.Finish().covered_mass;
      }
      EXPECT_TRUE(results == reduced) << Name(type) << ", k " << top_k;
    }
  }
}

TEST(Dense, MaskedTokensAreImpossible) {
  LogitMatrix matrix(LogitType::kBfloat16, 1, 5);
  for (int32_t v = 0; v < 5; ++v) matrix.Set(0, v, v < 2 ? kMinusInfinity : 1.0f);
  const std::vector<int32_t> sampled = {1};
  const std::vector<int32_t> ids = {0, 1, -1};
  const std::vector<float> log_probs = {-1.0f, -2.0f, kMinusInfinity};
  DenseResults results(1);
  ASSERT_TRUE(ReduceLogits(matrix.View(), {sampled, ids, log_probs}, {.slots = 3, .top_k = 3},
                           results.View())
                  .ok());
  EXPECT_EQ(results.sampled[0], kMinusInfinity);
  EXPECT_EQ(results.envelopes[0], kMinusInfinity);
  EXPECT_EQ(results.masses[0], 0.0f);
  EXPECT_NEAR(results.log_sum_exps[0], 1 + std::log(3.0), kBound);
}

TEST(Dense, ErrorsNamePositionAndId) {
  for (const LogitType type : kLogitTypes) {
    for (const float bad : {kNan, kInfinity}) {
      Problem problem(type, 3000, 4, 5, 21);
      problem.matrix.Set(3, 2345, bad);
      const DenseParameters parameters{.slots = 4, .top_k = 4, .first_position = 100};
      DenseResults results(5);
      const absl::Status whole =
          ReduceLogits(problem.matrix.View(), problem.records.View(), parameters, results.View());
      EXPECT_EQ(whole.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(whole.message()), HasSubstr("position 103, vocabulary id 2345: "));
      EXPECT_THAT(std::string(whole.message()), HasSubstr(std::isnan(bad) ? "nan" : "inf"));
      const absl::Status sharded = problem.ByShards({1000, 2000}, parameters, results);
      EXPECT_EQ(sharded, whole);
    }
  }
}

TEST(Dense, AllMinusInfinityIsAnError) {
  Problem problem(LogitType::kFloat16, 2000, 4, 2, 22);
  for (int32_t v = 0; v < 2000; ++v) problem.matrix.Set(1, v, kMinusInfinity);
  const DenseParameters parameters{.slots = 4, .top_k = 4, .first_position = 7};
  DenseResults results(2);
  const absl::Status whole =
      ReduceLogits(problem.matrix.View(), problem.records.View(), parameters, results.View());
  EXPECT_EQ(whole, absl::InvalidArgumentError("logits at position 8: all are -inf"));
  EXPECT_EQ(problem.ByShards({1024, 1500}, parameters, results), whole);
}

TEST(Dense, AMissingShardIsAnError) {
  Problem problem(LogitType::kFloat32, 2000, 4, 2, 23);
  const DenseParameters parameters{.slots = 4, .top_k = 4};
  PartialStorage partial(2, 4);
  ASSERT_TRUE(ReduceShard(problem.matrix.Shard(0, 1999), problem.records.View(), parameters,
                          partial.partial)
                  .ok());
  DenseResults results(2);
  EXPECT_EQ(
      FinishShards(partial.partial, 2000, problem.records.View(), parameters, results.View()),
      absl::InvalidArgumentError("logits: the shards have 1999 columns, the vocabulary 2000"));
}

}  // namespace
}  // namespace sis
