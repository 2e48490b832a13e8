// What the dense kernel must do, wherever it runs: the bytes and the errors of
// kernels/decide/dense/dense.h.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "kernels/cuda/dense/dense_block.h"
#include "kernels/cuda/dense/dense_runner.h"
#include "kernels/testing/random_logits.h"

namespace sis::cuda {

// Arrays of a task in the runner's memory.
class DenseArrays {
 public:
  explicit DenseArrays(const DenseRunner& runner) : runner_(runner) {}

  template <typename T>
  T* New(size_t count) {
    arrays_.push_back(runner_.Allocate(std::max<size_t>(count, 1) * sizeof(T)));
    std::memset(static_cast<void*>(arrays_.back().get()), 0xa5, count * sizeof(T));
    return reinterpret_cast<T*>(arrays_.back().get());
  }
  template <typename T>
  T* Copy(std::span<const T> from) {
    T* to = New<T>(from.size());
    std::copy(from.begin(), from.end(), to);
    return to;
  }

 private:
  const DenseRunner& runner_;
  std::vector<std::shared_ptr<std::byte>> arrays_;
};

// A task over the logits, each row aligned to its elements, the results left to be filled in.
inline DenseTask TaskOf(DenseArrays& arrays, const LogitsView& logits,
                        const DenseRecordView& records, const DenseParameters& parameters) {
  const size_t positions = records.sampled_ids.size();
  const size_t row_bytes = logits.width * LogitBytes(logits.type);
  const size_t stride = row_bytes + LogitBytes(logits.type);  // no two rows aligned alike
  std::byte* rows = arrays.New<std::byte>(positions * stride);
  for (size_t i = 0; i < positions; ++i) {
    std::memcpy(rows + i * stride, logits.row(i), row_bytes);
  }
  DenseTask task{};
  task.parameters = parameters;
  task.type = logits.type;
  task.logits = rows;
  task.width = logits.width;
  task.vocabulary_offset = logits.vocabulary_offset;
  task.row_stride_bytes = static_cast<ptrdiff_t>(stride);
  task.sampled_ids = arrays.Copy(records.sampled_ids);
  task.ids = arrays.Copy(records.ids);
  task.log_probs = arrays.Copy(records.log_probs);
  task.positions = static_cast<uint32_t>(positions);
  task.sampled_log_probs = arrays.New<float>(positions);
  task.log_envelopes = arrays.New<float>(positions);
  task.covered_masses = arrays.New<float>(positions);
  task.log_sum_exps = arrays.New<double>(positions);
  task.first_error = arrays.New<unsigned long long>(1);
  *task.first_error = kNoDenseError;
  return task;
}

inline DenseResults ResultsOf(const DenseTask& task) {
  DenseResults results(task.positions);
  std::copy_n(task.sampled_log_probs, task.positions, results.sampled.begin());
  std::copy_n(task.log_envelopes, task.positions, results.envelopes.begin());
  std::copy_n(task.covered_masses, task.positions, results.masses.begin());
  std::copy_n(task.log_sum_exps, task.positions, results.log_sum_exps.begin());
  return results;
}

// Whole vocabularies of every type, shape and odd width.
inline void ExpectTheBytesOfTheHost(const DenseRunner& runner) {
  std::mt19937 random(1);
  for (const LogitType type : kLogitTypes) {
    for (const int32_t width : {1, 7, 63, 64, 65, 1023, 1024, 1025, 5000, 20000}) {
      for (const Shape shape : kShapes) {
        constexpr size_t kPositions = 3;
        const int slots = 1 + static_cast<int>(random() % kMaxTopK);
        const DenseParameters parameters{.slots = slots, .top_k = (slots + 1) / 2};
        LogitMatrix matrix(type, kPositions, width);
        Fill(matrix, kPositions, shape, random);
        const DenseRecords records(matrix, kPositions, slots, random);
        DenseResults expected(kPositions);
        ASSERT_TRUE(ReduceLogits(matrix.View(), records.View(), parameters, expected.View()).ok());

        DenseArrays arrays(runner);
        const DenseTask task = TaskOf(arrays, matrix.View(), records.View(), parameters);
        const absl::Status status = runner.Run(DenseStep::kReduceLogits, task);
        ASSERT_TRUE(status.ok()) << status;
        ASSERT_EQ(*task.first_error, kNoDenseError);
        ASSERT_TRUE(ResultsOf(task) == expected)
            << Name(type) << ", width " << width << ", K " << slots;
      }
    }
  }
}

// Shards at any boundary, each shard's part and the finish.
inline void ExpectTheBytesOfTheHostByShards(const DenseRunner& runner) {
  std::mt19937 random(2);
  constexpr size_t kPositions = 4;
  constexpr int32_t kVocabulary = 6000;
  const DenseParameters parameters{.slots = 20, .top_k = 17};
  for (const LogitType type : kLogitTypes) {
    LogitMatrix matrix(type, kPositions, kVocabulary);
    Fill(matrix, kPositions, Shape::kNormal, random);
    const DenseRecords records(matrix, kPositions, parameters.slots, random);
    for (const std::vector<int32_t>& bounds :
         std::vector<std::vector<int32_t>>{{0, kVocabulary},
                                           {0, 1024, kVocabulary},
                                           {0, 1, 1000, 1025, 4096, 5999, kVocabulary},
                                           {0, records.ids[0], records.ids[0] + 1, kVocabulary},
                                           {0, 3000, 3000, kVocabulary}}) {
      const size_t shards = bounds.size() - 1;
      DenseArrays arrays(runner);
      const DensePart parts{arrays.New<ExpSum>(shards * kPositions),
                            arrays.New<float>(shards * kPositions * parameters.slots),
                            arrays.New<float>(shards * kPositions)};
      DensePartial merged;
      std::vector<ExpSum> sums(shards * kPositions);
      std::vector<float> slot_logits(shards * kPositions * parameters.slots);
      std::vector<float> sampled_logits(shards * kPositions);
      DenseTask task{};
      for (size_t shard = 0; shard < shards; ++shard) {
        const LogitsView logits = matrix.Shard(bounds[shard], bounds[shard + 1]);
        const size_t first = shard * kPositions;
        DensePartial expected{
            .exp_sums = std::span(sums).subspan(first, kPositions),
            .slot_logits = std::span(slot_logits)
                               .subspan(first * parameters.slots, kPositions * parameters.slots),
            .sampled_logits = std::span(sampled_logits).subspan(first, kPositions)};
        ASSERT_TRUE(ReduceShard(logits, records.View(), parameters, expected).ok());

        task = TaskOf(arrays, logits, records.View(), parameters);
        task.part = {parts.exp_sums + first, parts.slot_logits + first * parameters.slots,
                     parts.sampled_logits + first};
        const absl::Status status = runner.Run(DenseStep::kReduceShard, task);
        ASSERT_TRUE(status.ok()) << status;
        ASSERT_EQ(*task.first_error, kNoDenseError);
        for (size_t i = 0; i < kPositions; ++i) {
          ASSERT_TRUE(task.part.exp_sums[i] == expected.exp_sums[i]) << shard;
          ASSERT_EQ(task.part.sampled_logits[i], expected.sampled_logits[i]) << shard;
        }
        ASSERT_TRUE(std::ranges::equal(
            std::span(task.part.slot_logits, kPositions * parameters.slots), expected.slot_logits));
      }
      merged = {.width = 0,
                .exp_sums = std::span(sums).first(kPositions),
                .slot_logits = std::span(slot_logits).first(kPositions * parameters.slots),
                .sampled_logits = std::span(sampled_logits).first(kPositions)};
      merged.width = bounds[1];
      for (size_t shard = 1; shard < shards; ++shard) {
        const size_t first = shard * kPositions;
        const DensePartial from{
            .width = bounds[shard + 1] - bounds[shard],
            .exp_sums = std::span(sums).subspan(first, kPositions),
            .slot_logits = std::span(slot_logits)
                               .subspan(first * parameters.slots, kPositions * parameters.slots),
            .sampled_logits = std::span(sampled_logits).subspan(first, kPositions)};
        MergeShard(from, merged);
      }
      DenseResults expected(kPositions);
      ASSERT_TRUE(
          FinishShards(merged, kVocabulary, records.View(), parameters, expected.View()).ok());
      task.part = parts;
      task.shards = static_cast<int>(shards);
      const absl::Status status = runner.Run(DenseStep::kFinishShards, task);
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_TRUE(ResultsOf(task) == expected) << Name(type) << ", " << shards << " shards";
    }
  }
}

// The first bad logit of the first bad position, and positions without a logit.
inline void ExpectErrorsAreFound(const DenseRunner& runner) {
  constexpr size_t kPositions = 4;
  constexpr int32_t kWidth = 3000;
  std::mt19937 random(3);
  const DenseParameters parameters{.slots = 2, .top_k = 2};
  const auto first_error = [&](const LogitMatrix& matrix, const DenseRecords& records) {
    DenseArrays arrays(runner);
    const DenseTask task = TaskOf(arrays, matrix.View(), records.View(), parameters);
    const absl::Status status = runner.Run(DenseStep::kReduceLogits, task);
    EXPECT_TRUE(status.ok()) << status;
    return *task.first_error;
  };
  for (const LogitType type : kLogitTypes) {
    LogitMatrix matrix(type, kPositions, kWidth);
    Fill(matrix, kPositions, Shape::kNormal, random);
    const DenseRecords records(matrix, kPositions, parameters.slots, random);
    EXPECT_EQ(first_error(matrix, records), kNoDenseError);
    for (int32_t v = 0; v < kWidth; ++v) matrix.Set(3, v, kMinusInfinity);
    EXPECT_EQ(first_error(matrix, records), DenseError(3, -1));
    for (const int32_t v : {2999, 1500, 1024, 40, 0}) {
      const float bad = v % 2 == 0 ? std::numeric_limits<float>::infinity() : std::nanf("");
      matrix.Set(2, v, bad);
      EXPECT_EQ(first_error(matrix, records), DenseError(2, v)) << Name(type);
    }
    matrix.Set(1, 2047, -std::nanf(""));
    EXPECT_EQ(first_error(matrix, records), DenseError(1, 2047)) << Name(type);
  }
}

}  // namespace sis::cuda
