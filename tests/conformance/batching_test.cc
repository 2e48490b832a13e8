// A decision is a function of its own position alone: however positions are put into stretches and
// calls, the bytes and the sums are the same.
#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/decide/validate_current.h"
#include "kernels/records/validate.h"
#include "tests/conformance/backends.h"
#include "tests/conformance/policy_pairs.h"
#include "tests/conformance/positions.h"

namespace sis {
namespace {

constexpr uint64_t kSequenceKey = 0x0123456789abcdef;

class BatchingTest : public BackendTest {};
SIS_INSTANTIATE_BACKENDS(BatchingTest);

class BatchingOfFormTest : public BackendTest {
 protected:
  // Calls `check` with 40 sets of positions, GATHERED and REDUCED, and with first positions of
  // every remainder mod 4.
  template <typename Check>
  void ForRandomPositions(const Check& check) {
    std::mt19937_64 random(11);
    for (int i = 0; i < 40; ++i) {
      const int slots = 1 + static_cast<int>(random() % 20);
      const EvaluateParameters parameters{slots, 1 + static_cast<int>(random() % slots), random()};
      const Positions gathered = RandomPositions(random, slots, 1 + random() % 300);
      const auto first_position = static_cast<uint32_t>(4 * (random() % 1000) + i % 4);
      check(parameters, first_position, gathered, random);
      check(parameters, first_position, Reduce(gathered, parameters.top_k), random);
    }
  }
};
SIS_INSTANTIATE_BACKENDS(BatchingOfFormTest);

TEST_P(BatchingTest, TheRandomPositionsAreValid) {
  std::mt19937_64 random(10);
  for (int slots = 1; slots <= 20; ++slots) {
    const Positions positions = RandomPositions(random, slots, 200);
    std::vector<uint16_t> ranks(positions.size());
    ASSERT_TRUE(ValidateRecords(positions.records(), slots, kPairVocabularySize, 0, ranks).ok());
    ASSERT_EQ(ranks, positions.sampled_ranks);
    ASSERT_TRUE(ValidateCurrent(positions.behavior(), positions.current(), slots, 0).ok());
    const Positions reduced = Reduce(positions, slots);
    ASSERT_TRUE(ValidateCurrent(reduced.behavior(), reduced.current(), slots, 0).ok());
  }
}

TEST_P(BatchingOfFormTest, SegmentsCutAnywhereInOneCall) {
  ForRandomPositions([](const EvaluateParameters& parameters, uint32_t first_position,
                        const Positions& positions, std::mt19937_64& random) {
    const Results whole = Evaluate(backend(), parameters, kSequenceKey, first_position, positions);
    Results cut(positions.size());
    std::vector<Stretch> stretches;
    for (size_t first = 0; first < positions.size();) {
      const size_t count = std::min<size_t>(random() % 12, positions.size() - first);
      stretches.push_back(StretchOf(positions, first, count, kSequenceKey, first_position, cut));
      first += count;
    }
    std::shuffle(stretches.begin(), stretches.end(), random);
    backend().Evaluate(parameters, stretches);
    ASSERT_TRUE(SameBytes(whole, cut));
  });
}

TEST_P(BatchingOfFormTest, OnePositionACall) {
  ForRandomPositions([](const EvaluateParameters& parameters, uint32_t first_position,
                        const Positions& positions, std::mt19937_64&) {
    const Results whole = Evaluate(backend(), parameters, kSequenceKey, first_position, positions);
    Results single(positions.size());
    for (size_t i = 0; i < positions.size(); ++i) {
      const Stretch stretch = StretchOf(positions, i, 1, kSequenceKey, first_position, single);
      backend().Evaluate(parameters, std::span(&stretch, 1));
    }
    ASSERT_TRUE(SameBytes(whole, single));
  });
}

TEST_P(BatchingOfFormTest, SegmentsOfSeveralSequencesDoNotTouchEachOther) {
  ForRandomPositions([](const EvaluateParameters& parameters, uint32_t first_position,
                        const Positions& positions, std::mt19937_64&) {
    const Results alone = Evaluate(backend(), parameters, kSequenceKey, first_position, positions);
    Results first(positions.size());
    Results other(positions.size());
    const Stretch stretches[] = {
        StretchOf(positions, 0, positions.size(), ~kSequenceKey, first_position + 2, other),
        StretchOf(positions, 0, positions.size(), kSequenceKey, first_position, first),
    };
    backend().Evaluate(parameters, stretches);
    ASSERT_TRUE(SameBytes(alone, first));
  });
}

TEST_P(BatchingOfFormTest, OnlyTheDecisionsAreRequired) {
  ForRandomPositions([](const EvaluateParameters& parameters, uint32_t first_position,
                        const Positions& positions, std::mt19937_64&) {
    const Results whole = Evaluate(backend(), parameters, kSequenceKey, first_position, positions);
    Results bare(positions.size());
    Stretch stretch = StretchOf(positions, 0, positions.size(), kSequenceKey, first_position, bare);
    stretch.output = {bare.decisions, {}, {}, {}};
    backend().Evaluate(parameters, std::span(&stretch, 1));
    ASSERT_EQ(whole.decisions, bare.decisions);
    ASSERT_TRUE(whole.sums == bare.sums);
  });
}

TEST_P(BatchingTest, GatheredAndReducedGiveTheSameBytes) {
  std::mt19937_64 random(12);
  for (int i = 0; i < 40; ++i) {
    const int slots = 1 + static_cast<int>(random() % 20);
    const EvaluateParameters parameters{slots, 1 + static_cast<int>(random() % slots), random()};
    const Positions gathered = RandomPositions(random, slots, 300);
    ASSERT_TRUE(SameBytes(
        Evaluate(backend(), parameters, kSequenceKey, 7, gathered),
        Evaluate(backend(), parameters, kSequenceKey, 7, Reduce(gathered, parameters.top_k))));
  }
}

TEST_P(BatchingTest, ASmallerKIsARecordOfFewerSlots) {
  std::mt19937_64 random(13);
  for (int i = 0; i < 40; ++i) {
    const int slots = 2 + static_cast<int>(random() % 20);
    const int top_k = 1 + static_cast<int>(random() % (slots - 1));
    const uint64_t draw = random();
    const Positions positions = RandomPositions(random, slots, 300);
    Positions truncated = positions;
    truncated.slots = top_k;
    truncated.ids.clear();
    truncated.behavior_log_probs.clear();
    truncated.current_log_probs.clear();
    for (size_t row = 0; row < positions.size(); ++row) {
      for (int slot = 0; slot < top_k; ++slot) {
        const size_t index = row * slots + slot;
        truncated.ids.push_back(positions.ids[index]);
        truncated.behavior_log_probs.push_back(positions.behavior_log_probs[index]);
        truncated.current_log_probs.push_back(positions.current_log_probs[index]);
      }
      if (truncated.sampled_ranks[row] >= top_k) truncated.sampled_ranks[row] = kRankOutside;
    }
    ASSERT_TRUE(SameBytes(Evaluate(backend(), {slots, top_k, draw}, kSequenceKey, 0, positions),
                          Evaluate(backend(), {top_k, top_k, draw}, kSequenceKey, 0, truncated)));
  }
}

TEST_P(BatchingTest, SumsAreAddedToWhatIsThere) {
  std::mt19937_64 random(14);
  const Positions positions = RandomPositions(random, 5, 50);
  const EvaluateParameters parameters{5, 5, 0};
  const Results once = Evaluate(backend(), parameters, kSequenceKey, 0, positions);
  Results twice(positions.size());
  const Stretch stretch = StretchOf(positions, 0, positions.size(), kSequenceKey, 0, twice);
  backend().Evaluate(parameters, std::span(&stretch, 1));
  backend().Evaluate(parameters, std::span(&stretch, 1));
  Sums expected = once.sums;
  expected += once.sums;
  EXPECT_TRUE(twice.sums == expected);
}

TEST_P(BatchingTest, NoPositionsAddNothing) {
  Positions positions;
  positions.slots = 3;
  const Results results = Evaluate(backend(), {3, 3, 0}, kSequenceKey, 0, positions);
  EXPECT_TRUE(results.sums == Sums());
}

}  // namespace
}  // namespace sis
