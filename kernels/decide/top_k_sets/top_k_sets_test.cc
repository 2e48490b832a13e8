#include "kernels/decide/top_k_sets/top_k_sets.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/decide/decide.h"
#include "kernels/numerics/exp32.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/numerics/simd_targets.h"
#include "kernels/page/encoded_page.h"
#include "kernels/records/record_view.h"
#include "kernels/testing/random_records.h"
// After the list of the targets that are built.
#include "hwy/targets.h"

namespace sis {
namespace {

using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int32_t kVocabulary = 600;
constexpr int32_t kLargestVocabulary = 1 << 24;

template <class Check>
void OnEveryTarget(const Check& check) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    check();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

struct Sets {
  int slots;
  std::vector<int32_t> ids = {};
  std::vector<float> log_probs = {};

  size_t size() const { return ids.size() / slots; }
  TopKSets view() const { return {slots, ids, log_probs}; }
};

std::vector<int32_t> IdsBelow(int32_t end) {
  std::vector<int32_t> ids(end);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

// Ids that have few hashes (kernels/decide/top_k_sets/simd_hashed_sets-inl.h).
std::vector<int32_t> CollidingIds() {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < 1 << 22; ++id) {
    if (static_cast<uint32_t>(id) * 0x9E3779B1u >> 18 < 2) ids.push_back(id);
  }
  return ids;
}

// Different ids out of these with falling log-probs, whose masses are about `mass`; some sets are
// not full, and values repeat now and then.
Sets RandomSets(std::mt19937& random, int slots, size_t n, std::vector<int32_t> ids,
                float mass = 0.9f) {
  Sets sets{slots};
  for (size_t i = 0; i < n; ++i) {
    const size_t most = std::min<size_t>(slots, ids.size());
    for (size_t slot = 0; slot < most; ++slot) {
      std::swap(ids[slot], ids[slot + random() % (ids.size() - slot)]);
    }
    const size_t used = random() % 3 == 0 ? 1 + random() % most : most;
    std::vector<float> weights(used);
    float sum = 0;
    for (float& weight : weights) {
      weight = static_cast<float>(1 + random() % 50);
      if (random() % 8 == 0) weight *= 1e-40f;  // its log-prob is below -87
      sum += weight;
    }
    std::ranges::sort(weights, std::greater<>());
    for (int slot = 0; slot < slots; ++slot) {
      const bool is_used = static_cast<size_t>(slot) < used;
      sets.ids.push_back(is_used ? ids[slot] : -1);
      sets.log_probs.push_back(is_used ? std::log(weights[slot] / sum) + std::log(mass)
                                       : kMinusInfinity);
    }
  }
  return sets;
}

struct Reduced {
  std::vector<float> log_envelopes;
  std::vector<float> covered_masses;

  friend bool operator==(const Reduced& a, const Reduced& b) {
    const auto same = [](const std::vector<float>& x, const std::vector<float>& y) {
      return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
    };
    return same(a.log_envelopes, b.log_envelopes) && same(a.covered_masses, b.covered_masses);
  }
};

template <class Reduce>
Reduced With(const Reduce& reduce, const Sets& recorded, int top_k, const Sets& current) {
  const size_t n = recorded.size();
  Reduced reduced{std::vector<float>(n), std::vector<float>(n)};
  reduce(RecordedSets{recorded.slots, top_k, recorded.ids, recorded.log_probs}, current.view(),
         ReducedSets{reduced.log_envelopes, reduced.covered_masses});
  return reduced;
}

// False, with `into` anything, where vectors don't tell.
bool OnVectors(const RecordedSets& recorded, const TopKSets& current, const ReducedSets& into) {
  return ReduceTopKSetsSimd(recorded, current, kLargestVocabulary, into);
}

void AsTheServerDoes(const RecordedSets& recorded, const TopKSets& current,
                     const ReducedSets& into) {
  const absl::Status status = ReduceTopKSets(recorded, current, kLargestVocabulary, 0, into);
  ASSERT_TRUE(status.ok()) << status;
}

TEST(TopKSets, VectorsGiveTheBytesOfTheScalarDefinition) {
  const std::vector<int32_t> colliding = CollidingIds();
  OnEveryTarget([&] {
    std::mt19937 random(1);
    for (int i = 0; i < 1500; ++i) {
      const int slots = 1 + static_cast<int>(random() % (i % 3 == 0 ? kMaxTopK : 20));
      const int current_slots = 1 + static_cast<int>(random() % (i % 5 == 0 ? kMaxTopK : 40));
      const int top_k = 1 + static_cast<int>(random() % slots);
      const size_t n = 1 + random() % 20;
      const std::vector<int32_t> ids =
          random() % 4 == 0 ? colliding
                            : IdsBelow(random() % 2 == 0 ? slots + random() % 10 : kVocabulary);
      const Sets recorded = RandomSets(random, slots, n, ids);
      const Sets current = RandomSets(random, current_slots, n, ids);
      const Reduced expected = With(ReduceTopKSetsScalar, recorded, top_k, current);
      ASSERT_TRUE(With(AsTheServerDoes, recorded, top_k, current) == expected)
          << "K " << slots << ", k " << top_k << ", K' " << current_slots;
    }
  });
}

// Pages hold records in groups and packed: the same as if they were decoded first.
TEST(TopKSets, RecordsNeedNotBeDecoded) {
  OnEveryTarget([] {
    std::mt19937 random(4);
    int on_vectors = 0;
    constexpr int kPages = 200;
    for (int i = 0; i < kPages; ++i) {
      const int slots = 1 + static_cast<int>(random() % (i % 3 == 0 ? kMaxTopKOfByteRanks : 20));
      const int bits = 1 + static_cast<int>(random() % 24);  // of an id, or a few more
      const PageHeader header{.encoding = static_cast<LogProbEncoding>(random() % 3),
                              .slots = slots,
                              .vocabulary_size = std::max(slots + 2, 1 << bits),
                              .first_position = 0,
                              .positions = 64};
      const std::vector<std::byte> page = Encode(header, RandomRecords(header, i));
      DecodedPage decoded = *DecodePage(page);
      const size_t first = random() % header.positions;
      const size_t n = 1 + random() % (header.positions - first);
      Sets recorded{slots};
      const auto part = [&](const auto& array) {
        return std::span(array).subspan(first * slots, n * slots);
      };
      std::ranges::copy(part(decoded.ids), std::back_inserter(recorded.ids));
      std::ranges::copy(part(decoded.log_probs), std::back_inserter(recorded.log_probs));
      // Of what is recorded in the page, so that something is found.
      std::ranges::sort(decoded.ids);
      decoded.ids.erase(std::unique(decoded.ids.begin(), decoded.ids.end()), decoded.ids.end());
      std::erase(decoded.ids, -1);
      const int current_slots = 1 + static_cast<int>(random() % (i % 2 == 0 ? kMaxTopK : 20));
      const Sets current = RandomSets(random, current_slots, n, decoded.ids);

      const PageView view = ViewPage(header, page);
      const size_t group = first / kGroupPositions;
      const auto lane = static_cast<uint8_t>(first % kGroupPositions);
      const size_t groups = GroupCount(lane + n);
      GroupedIds ids{.rows = view.ids, .bits = IdBits(header.vocabulary_size), .first_lane = lane};
      ids.rows = ids.rows.subspan(group * ids.GroupBytes(slots), groups * ids.GroupBytes(slots));
      const size_t group_bytes = GroupBytes(header.encoding, slots);
      const int top_k = 1 + static_cast<int>(random() % slots);
      const RecordedSets packed{
          .slots = slots,
          .top_k = top_k,
          .ids = {},
          .log_probs = {},
          .grouped_ids = ids,
          .grouped_log_probs = {
              .rows = view.log_probs.subspan(group * group_bytes, groups * group_bytes),
              .encoding = header.encoding,
              .first_lane = lane}};
      const Reduced expected = With(ReduceTopKSetsScalar, recorded, top_k, current);
      Reduced reduced{std::vector<float>(n), std::vector<float>(n)};
      const ReducedSets into{reduced.log_envelopes, reduced.covered_masses};
      ReduceTopKSetsScalar(packed, current.view(), into);
      ASSERT_TRUE(reduced == expected) << "K " << slots << ", k " << top_k;
      if (!OnVectors(packed, current.view(), into)) continue;
      ++on_vectors;
      ASSERT_TRUE(reduced == expected)
          << "K " << slots << ", k " << top_k << ", K' " << current_slots << ", bits " << ids.bits;
    }
    EXPECT_TRUE(on_vectors == 0 || on_vectors == kPages) << on_vectors;
  });
}

// What the trainer's set leaves out only raises the envelope and lowers the mass; with nothing left
// out the bytes are those of the gathered values.
TEST(TopKSets, ASmallerSetGivesALargerEnvelopeAndLessMass) {
  std::mt19937 random(2);
  int64_t larger = 0;
  for (int i = 0; i < 2000; ++i) {
    const int slots = 1 + static_cast<int>(random() % 20);
    const int top_k = 1 + static_cast<int>(random() % slots);
    const int32_t vocabulary = 30;
    const Sets recorded = RandomSets(random, slots, 1, IdsBelow(vocabulary));
    Sets current = RandomSets(random, vocabulary, 1, IdsBelow(vocabulary));

    EnvelopeAccumulator gathered;
    for (int slot = 0; slot < top_k; ++slot) {
      const auto found = std::ranges::find(current.ids, recorded.ids[slot]);
      gathered.Add(recorded.log_probs[slot], found == current.ids.end()
                                                 ? kMinusInfinity
                                                 : current.log_probs[found - current.ids.begin()]);
    }
    Reduced before = With(AsTheServerDoes, recorded, top_k, current);
    if (current.ids.back() == -1) {
      ASSERT_EQ(before.log_envelopes[0], gathered.Finish().log_envelope);
      ASSERT_EQ(before.covered_masses[0], gathered.covered_mass);
    }
    for (current.slots = vocabulary - 1; current.slots > 0; --current.slots) {
      current.ids.resize(current.slots);
      current.log_probs.resize(current.slots);
      const Reduced after = With(AsTheServerDoes, recorded, top_k, current);
      ASSERT_GE(after.log_envelopes[0], before.log_envelopes[0]);
      ASSERT_LE(after.covered_masses[0], before.covered_masses[0]);
      larger += after.log_envelopes[0] > before.log_envelopes[0];
      before = after;
    }
    ASSERT_GE(before.log_envelopes[0], gathered.Finish().log_envelope);
  }
  EXPECT_GT(larger, 2000);
}

TEST(TopKSets, AnExample) {
  const Sets recorded{3, {5, 6, 7}, {-1.0f, -1.5f, -2.0f}};
  // 6 is not in the set: at most as probable as 8. Of two slots, 7 counts for nothing.
  const Sets current{3, {7, 5, 8}, {-0.5f, -1.25f, -3.0f}};
  EXPECT_TRUE(With(AsTheServerDoes, recorded, 2, current) == (Reduced{{-0.25f}, {Exp32(-1.25f)}}));
  EXPECT_TRUE(With(AsTheServerDoes, recorded, 3, current) ==
              (Reduced{{1.5f}, {Exp32(-1.25f) + Exp32(-0.5f)}}));
  // Nothing of the record is in the set, which is the whole support.
  const Sets disjoint{3, {1, 2, -1}, {-0.5f, -1.25f, kMinusInfinity}};
  EXPECT_TRUE(With(AsTheServerDoes, recorded, 3, disjoint) == (Reduced{{-kInfinity}, {0.0f}}));
  // Nothing is recorded.
  const Sets nothing{2, {-1, -1}, {-kInfinity, -kInfinity}};
  EXPECT_TRUE(With(AsTheServerDoes, nothing, 2, disjoint) == (Reduced{{-kInfinity}, {0.0f}}));
}

// What the validation means, one value at a time.
bool IsValid(const Sets& sets, int32_t vocabulary) {
  for (size_t first = 0; first < sets.ids.size(); first += sets.slots) {
    float mass = 0.0f;
    for (size_t i = first; i < first + sets.slots; ++i) {
      const int32_t id = sets.ids[i];
      const float log_prob = sets.log_probs[i];
      if ((id == -1) != (log_prob == kMinusInfinity)) return false;
      if (i > first && !(log_prob <= sets.log_probs[i - 1])) return false;
      if (i == first && id == -1) return false;
      if (id == -1) continue;
      if (id < 0 || id >= vocabulary) return false;
      if (!(log_prob <= 0x1p-6f)) return false;
      if (std::count(sets.ids.begin() + first, sets.ids.begin() + first + sets.slots, id) > 1) {
        return false;
      }
      mass = mass + Exp32(log_prob);
    }
    if (!(mass <= 1.0f + 0x1p-6f)) return false;
  }
  return true;
}

TEST(TopKSets, ValidationIsWhatItMeansOneByOne) {
  const std::vector<int32_t> colliding = CollidingIds();
  OnEveryTarget([&] {
    std::mt19937 random(3);
    int valid = 0;
    int quick = 0;
    for (int i = 0; i < 3000; ++i) {
      const int slots = 1 + static_cast<int>(random() % (i % 2 == 0 ? 6 : 70));
      const size_t n = 1 + random() % 40;
      const float mass = random() % 4 == 0 ? 1.0f + 0x1p-6f : 0.9f;
      const bool collide = random() % 3 == 0;
      const int32_t vocabulary = collide ? colliding.back() + 1 : kVocabulary;
      const std::vector<int32_t> ids = collide ? colliding : IdsBelow(kVocabulary);
      Sets sets = RandomSets(random, slots, n, ids, mass);
      constexpr float kValues[] = {kNan,  kInfinity,      0.015625f, 0.01562501f,
                                   -0.0f, kMinusInfinity, -1000.0f};
      const int32_t other_ids[] = {-1, -2, vocabulary - 1, vocabulary, 0, INT32_MIN, INT32_MAX};
      const size_t at = random() % sets.ids.size();
      switch (random() % 5) {
        case 0:
          sets.log_probs[at] = kValues[random() % std::size(kValues)];
          break;
        case 1:
          sets.ids[at] = other_ids[random() % std::size(other_ids)];
          break;
        case 2:
          sets.ids[at] = sets.ids[at - at % slots + random() % slots];
          break;
        case 3:
          std::swap(sets.log_probs[at], sets.log_probs[at - at % slots + random() % slots]);
          break;
      }
      const bool expected = IsValid(sets, vocabulary);
      const absl::Status status = ValidateTopKSets(sets.view(), vocabulary, 7);
      ASSERT_EQ(status.ok(), expected) << status << ", K' " << slots << ", n " << n;
      const Sets recorded = RandomSets(random, 3, n, ids);
      const RecordedSets records{3, 3, recorded.ids, recorded.log_probs};
      std::vector<float> log_envelopes(n), covered_masses(n);
      const ReducedSets into{log_envelopes, covered_masses};
      const bool seen = ReduceTopKSetsSimd(records, sets.view(), vocabulary, into);
      ASSERT_TRUE(expected || !seen) << status << ", K' " << slots << ", n " << n;
      ASSERT_EQ(ReduceTopKSets(records, sets.view(), vocabulary, 7, into), status);
      valid += expected;
      quick += seen;
    }
    EXPECT_GT(valid, 750);
    EXPECT_LT(valid, 2500);
    // Few positions are looked at one by one, and everything is without vectors.
    EXPECT_TRUE(quick == 0 || quick > valid * 3 / 4) << quick << " of " << valid;
  });
}

TEST(TopKSets, WhatIsBadIsNamed) {
  const auto message = [](std::vector<int32_t> ids, std::vector<float> log_probs) {
    const int slots = static_cast<int>(ids.size());
    const Sets sets{slots, std::move(ids), std::move(log_probs)};
    return std::string(ValidateTopKSets(sets.view(), 10, 41).message());
  };
  EXPECT_EQ(message({3, 2, -1}, {-1.0f, -1.0f, -kInfinity}), "") << "ties stand in any order";
  EXPECT_THAT(message({-1, -1}, {-kInfinity, -kInfinity}),
              HasSubstr("top_k_set.ids at position 41, slot 0: -1: the set is empty"));
  EXPECT_THAT(message({3, 10}, {-1.0f, -2.0f}),
              HasSubstr("top_k_set.ids at position 41, slot 1: 10"));
  EXPECT_THAT(message({3, 3}, {-1.0f, -2.0f}), HasSubstr("slot 1: id 3 stands twice"));
  EXPECT_THAT(message({3, 4}, {-2.0f, -1.0f}),
              HasSubstr("top_k_set.log_probs at position 41, slot 1: -1 is above the slot before"));
  EXPECT_THAT(message({3, -1, 4}, {-1.0f, -kInfinity, -2.0f}), HasSubstr("after an unused slot"));
  EXPECT_THAT(message({-1, 4}, {-1.0f, -2.0f}), HasSubstr("slot 0: -1 in an unused slot"));
  EXPECT_THAT(message({1, 4}, {-0.1f, -0.2f}), HasSubstr("probabilities sum to 1.72"));
}

}  // namespace
}  // namespace sis
