#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/numerics/exp32.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/numerics/simd_targets.h"
#include "kernels/records/mass_cut.h"
#include "kernels/records/validate.h"
// After the list of the targets that are built.
#include "hwy/targets.h"

namespace sis {
namespace {

struct Records {
  std::vector<int32_t> sampled_ids;
  std::vector<float> sampled_log_probs;
  std::vector<int32_t> ids;
  std::vector<float> log_probs;

  RecordView view() const { return {sampled_ids, sampled_log_probs, ids, log_probs}; }
};

constexpr int32_t kVocabularySize = 3000;

// Valid ones, with ties and masses up to the most that is valid.
Records RandomRecords(std::mt19937& random, size_t slots, size_t n) {
  Records records;
  for (size_t i = 0; i < n; ++i) {
    const size_t used = random() % 4 == 0 ? random() % (slots + 1) : slots;
    const float mass = random() % 4 == 0 ? 1.0f : 0x1p-5f * (1 + random() % 32);
    std::vector<int32_t> ids;
    while (ids.size() < used) {
      const auto id = static_cast<int32_t>(random() % kVocabularySize);
      if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
    }
    if (random() % 2 == 0) std::ranges::sort(ids);
    float log_prob = std::log(mass / static_cast<float>(used));
    for (size_t slot = 0; slot < slots; ++slot) {
      if (slot > 0 && (slot >= used || ids[slot] < ids[slot - 1] || random() % 4 == 0)) {
        log_prob -= 0x1p-8f * (1 + random() % (random() % 8 == 0 ? 30000 : 20));
      }
      records.ids.push_back(slot < used ? ids[slot] : -1);
      records.log_probs.push_back(slot < used ? log_prob : kMinusInfinity);
    }
    const size_t rank = random() % slots;
    const bool inside = rank < used && random() % 4 != 0;
    const auto outside = static_cast<int32_t>(random() % kVocabularySize);
    const size_t at = i * slots + rank;
    const bool free = std::ranges::find(ids, outside) == ids.end();
    records.sampled_ids.push_back(inside ? records.ids[at] : free ? outside : ids[0]);
    records.sampled_log_probs.push_back(inside ? records.log_probs[at]
                                        : free ? -20.0f
                                               : records.log_probs[i * slots]);
  }
  return records;
}

template <typename T>
T OneOf(std::mt19937& random, std::initializer_list<T> values) {
  return values.begin()[random() % values.size()];
}

// Changes one value, so that the records may not be valid any more.
void Spoil(std::mt19937& random, size_t slots, Records& records) {
  const size_t slot = random() % records.ids.size();
  const size_t other = random() % records.ids.size();
  const size_t position = random() % records.sampled_ids.size();
  switch (random() % 6) {
    case 0:
      records.ids[slot] = OneOf(random, {-2, -1, 0, kVocabularySize - 1, kVocabularySize,
                                         std::numeric_limits<int32_t>::min(), records.ids[other]});
      break;
    case 1:
      records.log_probs[slot] = OneOf(
          random, {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                   kMinusInfinity, 0.015625f, 0.01562501f, -0.0f, -1000.0f,
                   records.log_probs[other], std::nextafter(records.log_probs[slot], 0.0f)});
      break;
    case 2:
      records.ids[slot] = records.ids[slot > 0 ? slot - 1 : 1 % records.ids.size()];
      break;
    case 3:
      records.sampled_ids[position] =
          OneOf(random, {-1, 0, kVocabularySize - 1, kVocabularySize, records.ids[other]});
      break;
    case 4:
      records.sampled_log_probs[position] =
          OneOf(random, {std::numeric_limits<float>::quiet_NaN(), kMinusInfinity, 0.015625f,
                         0.01562501f, records.log_probs[other],
                         std::nextafter(records.sampled_log_probs[position], 0.0f)});
      break;
    case 5:  // stands twice, however far apart
      records.ids[slot] = records.ids[slot - slot % slots + random() % slots];
      break;
  }
}

// By ValidateRecords of one position, which is not looked at on vectors.
bool AllValid(const Records& records, size_t slots, std::vector<uint16_t>& ranks) {
  const RecordView all = records.view();
  for (size_t i = 0; i < ranks.size(); ++i) {
    const RecordView one = {all.sampled_ids.subspan(i, 1), all.sampled_log_probs.subspan(i, 1),
                            all.ids.subspan(i * slots, slots),
                            all.log_probs.subspan(i * slots, slots)};
    if (!ValidateRecords(one, static_cast<int>(slots), kVocabularySize, 0,
                         std::span(ranks).subspan(i, 1))
             .ok()) {
      return false;
    }
  }
  return true;
}

// Valid or not.
Records Cut(const Records& records, size_t slots, double mass) {
  Records cut = records;
  std::vector<uint16_t> ranks(records.sampled_ids.size());
  CutToMass(mass, slots, cut.ids, cut.log_probs, ranks);
  return cut;
}

// Of valid sets.
std::vector<uint16_t> CountsOf(const Records& records, size_t slots) {
  std::vector<uint16_t> counts;
  for (size_t i = 0; i < records.sampled_ids.size(); ++i) {
    const auto set = std::span(records.ids).subspan(i * slots, slots);
    counts.push_back(static_cast<uint16_t>(std::ranges::find(set, -1) - set.begin()));
  }
  return counts;
}

// Now and then what slots of the first set cover, or hardly more.
double Target(std::mt19937& random, const Records& records, size_t slots) {
  if (random() % 3 == 0) return OneOf(random, {0.01, 0.5, 0.9, 0.97, 0.999999});
  const size_t count = 1 + random() % slots;
  float mass = 0;
  for (size_t slot = 0; slot < count; ++slot) {
    const float log_prob = records.log_probs[slot];
    mass = mass + (log_prob <= 0 ? Exp32(log_prob) : 0.0f);
  }
  const double target = random() % 2 == 0 ? mass : std::nextafter(double{mass}, 2.0);
  return target > 0 && target < 1 ? target : 0.97;
}

void ExpectSameOfRecords() {
  std::mt19937 random(32);
  int valid = 0;
  int invalid = 0;
  int made_valid = 0;  // by the cut
  for (int i = 0; i < 4000; ++i) {
    const size_t slots = 1 + random() % (i % 2 == 0 ? 6 : i % 32 == 1 ? kMaxTopK : 24);
    const size_t n = 4 + random() % 40;
    Records records = RandomRecords(random, slots, n);
    if (random() % 4 != 0) Spoil(random, slots, records);
    std::vector<uint16_t> expected_ranks(n);
    std::vector<uint16_t> ranks(n);
    const double mass = Target(random, records, slots);
    const bool expected = AllValid(records, slots, expected_ranks);
    ASSERT_EQ(
        RecordsAreQuicklySeenValid(records.view(), static_cast<int>(slots), kVocabularySize, ranks),
        expected)
        << "K " << slots << ", " << n << " positions";
    if (expected) {
      ASSERT_EQ(ranks, expected_ranks) << "K " << slots << ", " << n << " positions";
    }
    // As the records that are left when all else is gone.
    const Records cut = Cut(records, slots, mass);
    std::vector<uint16_t> expected_cut_ranks(n);
    const bool expected_of_cut = AllValid(cut, slots, expected_cut_ranks);
    const std::vector<uint16_t> expected_counts = CountsOf(cut, slots);
    std::vector<uint16_t> counts(n);
    ASSERT_EQ(RecordsAreQuicklySeenValid(records.view(), static_cast<int>(slots), kVocabularySize,
                                         ranks, {mass, counts}),
              expected_of_cut)
        << "K " << slots << ", mass " << mass;
    if (expected_of_cut) {
      ASSERT_EQ(counts, expected_counts) << "K " << slots << ", mass " << mass;
      ASSERT_EQ(ranks, expected_cut_ranks) << "K " << slots << ", mass " << mass;
    }
    made_valid += expected_of_cut && !expected;
    // A few are seen one by one.
    const size_t few = std::min<size_t>(n, 3);
    const RecordView all = records.view();
    const RecordView first = {all.sampled_ids.first(few), all.sampled_log_probs.first(few),
                              all.ids.first(few * slots), all.log_probs.first(few * slots)};
    const absl::Status status =
        ValidateRecords(first, static_cast<int>(slots), kVocabularySize, 0,
                        std::span(ranks).first(few), {mass, std::span(counts).first(few)});
    if (expected_of_cut) {
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_EQ(counts, expected_counts) << "K " << slots << ", mass " << mass;
      ASSERT_EQ(ranks, expected_cut_ranks) << "K " << slots << ", mass " << mass;
    }
    ++(expected ? valid : invalid);
  }
  EXPECT_GT(valid, 1000);
  EXPECT_GT(invalid, 1000);
  EXPECT_GT(made_valid, 100);
}

TEST(SimdValidateTest, RecordsSameAsOneByOneOnEveryTarget) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (target == HWY_SCALAR) continue;  // leaves it to the caller
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    ExpectSameOfRecords();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace
}  // namespace sis
