#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/block/validate.h"
#include "kernels/numerics/exp32.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/numerics/simd_targets.h"
#include "kernels/testing/random_blocks.h"
// After the list of the targets that are built.
#include "hwy/targets.h"

namespace sis {
namespace {

constexpr int32_t kVocabularySize = 3000;

// Returns valid records, with ties and masses up to the maximum.
Records ValidRecords(std::mt19937& random, size_t slots, size_t n) {
  Records records{slots, {}, {}, {}, {}};
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

// Changes one value, which may make the records invalid.
void Spoil(std::mt19937& random, Records& records) {
  const size_t slot = random() % records.ids.size();
  const size_t other = random() % records.ids.size();
  const size_t position = random() % records.sampled_ids.size();
  switch (random() % 5) {
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
  }
}

// Arrays that the validation writes, with a value per record.
struct Written {
  std::vector<uint8_t> counts, ranks;

  explicit Written(size_t n) : counts(n), ranks(n) {}
  friend bool operator==(const Written&, const Written&) = default;
};

bool AllValid(const Records& records, double mass, Written& written) {
  return ValidateRecordsOneByOne(records.view(), static_cast<int>(records.slots), kVocabularySize,
                                 0, mass, written.counts, written.ranks)
      .ok();
}

// Returns records cut at the mass. They may be invalid.
Records Cut(const Records& records, double mass) {
  Records cut = records;
  const size_t slots = records.slots;
  for (size_t i = 0; i < records.size(); ++i) {
    float covered = 0;
    for (size_t place = i * slots; place < (i + 1) * slots; ++place) {
      const bool open = covered < mass;
      const float log_prob = records.log_probs[place];
      // The mass of invalid values does not matter.
      if (open) covered = covered + (log_prob <= kRoundingSlack ? Exp32(log_prob) : 1.0f);
      if (open) continue;
      cut.ids[place] = -1;
      cut.log_probs[place] = kMinusInfinity;
    }
  }
  return cut;
}

// Returns a mass; sometimes exactly that of some slots of the first set, or slightly more.
double Target(std::mt19937& random, const Records& records) {
  if (random() % 3 == 0) return OneOf(random, {0.01, 0.5, 0.9, 0.97, 0.999999});
  const size_t count = 1 + random() % records.slots;
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
    const size_t slots = 1 + random() % (i % 2 == 0 ? 6 : i % 32 == 1 ? kMaxBlockSlots : 24);
    const size_t n = 1 + random() % 40;
    Records records = ValidRecords(random, slots, n);
    if (random() % 4 != 0) Spoil(random, records);
    const double mass = Target(random, records);
    bool whole_is_valid = false;
    for (const double end : {0.0, mass}) {
      SCOPED_TRACE(testing::Message() << "K " << slots << ", " << n << " positions, mass " << end);
      Written expected(n), found(n);
      const bool is_valid = AllValid(records, end, expected);
      ASSERT_EQ(RecordsAreQuicklySeenValid(records.view(), static_cast<int>(slots), kVocabularySize,
                                           end, found.counts, found.ranks),
                is_valid);
      if (is_valid) {
        ASSERT_EQ(found, expected);
      }
      ++(is_valid ? valid : invalid);
      if (end == 0) {
        whole_is_valid = is_valid;
        continue;
      }
      made_valid += is_valid && !whole_is_valid;
      // The cut records must be as valid as the same records on their own.
      Written left(n);
      ASSERT_EQ(AllValid(Cut(records, mass), 0, left), is_valid);
      if (is_valid) {
        ASSERT_EQ(left, expected);
      }
    }
  }
  EXPECT_GT(valid, 1000);
  EXPECT_GT(invalid, 1000);
  EXPECT_GT(made_valid, 100);
}

TEST(SimdValidateTest, RecordsSameAsOneByOneOnEveryTarget) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
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
