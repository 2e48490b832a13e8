#include "kernels/simd_validate.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "hwy/targets.h"
#include "kernels/exp32.h"

namespace sis {
namespace {

// What the validation means, one value at a time.
bool AllValid(const std::vector<float>& behavior, const std::vector<float>& current, size_t slots) {
  for (size_t first = 0; first < behavior.size(); first += slots) {
    float mass = 0.0f;
    for (size_t i = first; i < first + slots; ++i) {
      if (behavior[i] == kMinusInfinity) continue;
      if (!(current[i] <= kRoundingSlack)) return false;
      mass = mass + Exp32(current[i]);
    }
    if (!(mass <= 1.0f + kRoundingSlack)) return false;
  }
  return true;
}

// Positions whose masses are within a few units in the last place of the most that is valid, or far
// below it.
struct Positions {
  std::vector<float> behavior;
  std::vector<float> current;
};

Positions RandomPositions(std::mt19937& random, size_t slots, size_t n) {
  Positions positions;
  std::uniform_real_distribution<float> uniform;
  for (size_t i = 0; i < n; ++i) {
    const size_t used = random() % 3 == 0 ? random() % (slots + 1) : slots;
    const float mass = random() % 4 == 0 ? 1.0f + kRoundingSlack : uniform(random);
    for (size_t slot = 0; slot < slots; ++slot) {
      positions.behavior.push_back(slot < used ? -1.0f : kMinusInfinity);
      positions.current.push_back(slot < used ? std::log(mass / static_cast<float>(used))
                                              : std::numeric_limits<float>::quiet_NaN());
    }
  }
  return positions;
}

void ExpectSameAsOneByOne() {
  std::mt19937 random(31);
  int valid = 0;
  int invalid = 0;
  for (int i = 0; i < 4000; ++i) {
    const size_t slots = 1 + random() % (i % 2 == 0 ? 6 : 40);
    const size_t n = 1 + random() % 40;
    Positions positions = RandomPositions(random, slots, n);
    // One value of one position, used or not; or none.
    constexpr float kValues[] = {std::numeric_limits<float>::quiet_NaN(),
                                 std::numeric_limits<float>::infinity(),
                                 0.015625f,
                                 0.01562501f,
                                 0.0f,
                                 kMinusInfinity,
                                 -1000.0f};
    if (random() % 4 != 0) {
      positions.current[random() % positions.current.size()] =
          kValues[random() % std::size(kValues)];
    }
    const std::vector<float> sampled(n, -1.0f);
    const std::vector<uint8_t> ranks(n, 0);
    const bool expected = AllValid(positions.behavior, positions.current, slots);
    ASSERT_EQ(
        GatheredLogProbsAreValid({positions.behavior, sampled, ranks},
                                 {sampled, positions.current, {}, {}}, static_cast<int>(slots)),
        expected)
        << "K " << slots << ", " << n << " positions";
    ++(expected ? valid : invalid);
  }
  EXPECT_GT(valid, 300);
  EXPECT_GT(invalid, 300);
}

TEST(SimdValidateTest, SameAsOneByOneOnEveryTarget) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (target == HWY_SCALAR) continue;  // leaves it to the caller
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    ExpectSameAsOneByOne();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace
}  // namespace sis
