// A decision is a function of its own position alone: however positions are put into blocks,
// ranges and calls, the bytes and the sums are the same.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/block/pack.h"
#include "kernels/decide/validate_current.h"
#include "tests/conformance/backends.h"
#include "tests/conformance/policy_pairs.h"
#include "tests/conformance/positions.h"

namespace sis {
namespace {

constexpr uint64_t kSequenceKey = 0x0123456789abcdef;

class BatchingTest : public BackendTest {
 protected:
  // Calls `check` with 60 sets of positions, GATHERED and REDUCED, in both encodings, cut to a mass
  // or not, and with first positions of every remainder mod 4.
  template <typename Check>
  void ForRandomPositions(const Check& check) {
    std::mt19937_64 random(11);
    for (int i = 0; i < 60; ++i) {
      const int slots = 1 + static_cast<int>(random() % 20);
      const EvaluateParameters parameters{1 + static_cast<int>(random() % slots), random()};
      const Packing packing = {i % 2 == 0 ? BlockEncoding::kFloat32 : BlockEncoding::kFixed16,
                               i % 3 == 0 ? 0.9 : 0};
      const Positions gathered = RandomPositions(random, slots, 1 + random() % 300);
      const auto first_position = static_cast<uint32_t>(4 * (random() % 1000) + i % 4);
      for (const Positions& positions : {gathered, Reduce(gathered, parameters.top_k, packing)}) {
        const Packed packed(positions, first_position, packing);
        check(parameters, packed, Evaluate(backend(), parameters, kSequenceKey, packed), random);
        if (HasFatalFailure()) return;
      }
    }
  }

  // Evaluates all positions in ranges of up to `longest` positions.
  static Results EvaluateInRanges(const EvaluateParameters& parameters, const Packed& packed,
                                  size_t longest, bool in_one_call, std::mt19937_64& random) {
    Results results(packed.size());
    std::vector<BackendRange> ranges;
    for (size_t first = 0; first < packed.size();) {
      const size_t count = std::min<size_t>(random() % (longest + 1), packed.size() - first);
      ranges.push_back(packed.RangeOf(first, count, kSequenceKey, results, first));
      first += count;
    }
    std::ranges::shuffle(ranges, random);
    if (in_one_call) {
      backend().Evaluate(parameters, ranges);
    } else {
      for (const BackendRange& range : ranges) backend().Evaluate(parameters, {&range, 1});
    }
    return results;
  }
};
SIS_INSTANTIATE_BACKENDS(BatchingTest);

TEST_P(BatchingTest, RangesOfABlockInAnyOrderAndCalls) {
  ForRandomPositions([](const EvaluateParameters& parameters, const Packed& packed,
                        const Results& whole, std::mt19937_64& random) {
    const auto n = static_cast<uint32_t>(packed.size());
    ASSERT_TRUE(
        ValidateCurrent(BlockRange(packed.blocks()[0], 0, n), packed.Current(0, n), 0).ok());
    ASSERT_EQ(whole.sums.invalid, 0);
    ASSERT_TRUE(SameBytes(whole, EvaluateInRanges(parameters, packed, 11, true, random)));
    ASSERT_TRUE(SameBytes(whole, EvaluateInRanges(parameters, packed, 1, false, random)));
  });
}

TEST_P(BatchingTest, SequencesDoNotTouchEachOtherAndOnlyDecisionsAreRequired) {
  ForRandomPositions([](const EvaluateParameters& parameters, const Packed& packed,
                        const Results& whole, std::mt19937_64&) {
    Results same(packed.size()), other(packed.size()), bare(packed.size());
    BackendRange ranges[] = {packed.RangeOf(0, packed.size(), ~kSequenceKey, other, 0),
                             packed.RangeOf(0, packed.size(), kSequenceKey, same, 0),
                             packed.RangeOf(0, packed.size(), kSequenceKey, bare, 0)};
    ranges[2].output = {bare.decisions};
    backend().Evaluate(parameters, ranges);
    ASSERT_TRUE(SameBytes(whole, same));
    ASSERT_EQ(whole.decisions, bare.decisions);
    ASSERT_TRUE(whole.sums == bare.sums);
  });
}

TEST_P(BatchingTest, BlocksCutAndMergedAnywhere) {
  ForRandomPositions([](const EvaluateParameters& parameters, const Packed& packed,
                        const Results& whole, std::mt19937_64& random) {
    const BlockView& block = packed.blocks()[0];
    const auto n = static_cast<uint32_t>(packed.size());
    if (n < 2) return;
    const auto cut = static_cast<uint32_t>(1 + random() % (n - 1));
    std::vector<std::byte> slices[] = {SliceBlock(block, 0, cut), SliceBlock(block, cut, n - cut)};
    const BlockView views[] = {OpenWithSlack(slices[0]), OpenWithSlack(slices[1])};
    Results sliced(n);
    BackendRange ranges[] = {packed.RangeOf(0, cut, kSequenceKey, sliced, 0),
                             packed.RangeOf(cut, n - cut, kSequenceKey, sliced, cut)};
    ranges[0].behavior = BlockRange(views[0], 0, cut);
    ranges[1].behavior = BlockRange(views[1], 0, n - cut);
    backend().Evaluate(parameters, ranges);
    ASSERT_TRUE(SameBytes(whole, sliced));
    // Merged blocks therefore give the same results as these.
    std::vector<std::byte> merged;
    const absl::Status status = MergeBlocks(views, [&](size_t bytes) {
      merged.resize(bytes);
      return merged.data();
    });
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(std::ranges::equal(merged, block.bytes));
  });
}

TEST_P(BatchingTest, GatheredAndReducedGiveTheSameBytes) {
  std::mt19937_64 random(12);
  for (int i = 0; i < 40; ++i) {
    const int slots = 1 + static_cast<int>(random() % 20);
    const EvaluateParameters parameters{1 + static_cast<int>(random() % slots), random()};
    const Packing packing = {i % 2 == 0 ? BlockEncoding::kFloat32 : BlockEncoding::kFixed16};
    const Positions gathered = RandomPositions(random, slots, 300);
    const Positions reduced = Reduce(gathered, parameters.top_k, packing);
    ASSERT_TRUE(SameBytes(Evaluate(backend(), parameters, kSequenceKey, 7, gathered, packing),
                          Evaluate(backend(), parameters, kSequenceKey, 7, reduced, packing)));
  }
}

TEST_P(BatchingTest, ASmallerKIsARecordOfFewerSlots) {
  std::mt19937_64 random(13);
  for (int i = 0; i < 40; ++i) {
    const int slots = 2 + static_cast<int>(random() % 20);
    const int top_k = 1 + static_cast<int>(random() % (slots - 1));
    const uint64_t draw = random();
    const Positions positions = RandomPositions(random, slots, 300);
    const auto first_slots = [&]<typename T>(const std::vector<T>& rows) {
      std::vector<T> firsts;
      for (size_t row = 0; row < positions.size(); ++row) {
        const auto begin = rows.begin() + static_cast<ptrdiff_t>(row * slots);
        firsts.insert(firsts.end(), begin, begin + top_k);
      }
      return firsts;
    };
    Positions truncated = positions;
    truncated.slots = top_k;
    truncated.ids = first_slots(positions.ids);
    truncated.behavior_log_probs = first_slots(positions.behavior_log_probs);
    truncated.current_log_probs = first_slots(positions.current_log_probs);
    ASSERT_TRUE(SameBytes(Evaluate(backend(), {top_k, draw}, kSequenceKey, 0, positions),
                          Evaluate(backend(), {top_k, draw}, kSequenceKey, 0, truncated)));
  }
}

TEST_P(BatchingTest, ResultsAreAddedToTheSums) {
  std::mt19937_64 random(14);
  const Packed packed(RandomPositions(random, 5, 50), 0);
  const Results once = Evaluate(backend(), {5, 0}, kSequenceKey, packed);
  Results twice(packed.size());
  const BackendRange range = packed.RangeOf(0, packed.size(), kSequenceKey, twice, 0);
  backend().Evaluate({5, 0}, {&range, 1});
  backend().Evaluate({5, 0}, {&range, 1});
  Sums expected = once.sums;
  expected += once.sums;
  EXPECT_TRUE(twice.sums == expected);
}

TEST_P(BatchingTest, NoPositionsAddNothing) {
  std::mt19937_64 random(15);
  const Packed packed(RandomPositions(random, 3, 5), 0);
  for (const size_t first : {0, 2}) {
    Results results(5);
    const BackendRange range = packed.RangeOf(first, 0, kSequenceKey, results, 0);
    backend().Evaluate({3, 0}, {&range, 1});
    EXPECT_TRUE(SameBytes(results, Results(5)));
  }
}

}  // namespace
}  // namespace sis
