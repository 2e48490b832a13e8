// Which positions' current values are valid (docs/numerics.md, section 2): every backend counts
// those that aren't.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/decide/backend.h"
#include "kernels/decide/validate_current.h"
#include "tests/conformance/backends.h"
#include "tests/conformance/positions.h"

namespace sis {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

class ValidityTest : public BackendTest {
 protected:
  // How many positions the definition finds invalid, one by one.
  static int64_t CountInvalid(const Packed& packed) {
    int64_t invalid = 0;
    for (size_t i = 0; i < packed.size(); ++i) {
      const BlockRange position(packed.blocks()[0], static_cast<uint32_t>(i), 1);
      invalid += !ValidateCurrent(position, packed.Current(i, 1), 0).ok();
    }
    return invalid;
  }
};
SIS_INSTANTIATE_BACKENDS(ValidityTest);

// Masses within a few units in the last place of the most that is valid, or far below it.
Positions ValidPositions(std::mt19937& random, int slots, size_t n) {
  Positions positions;
  positions.slots = slots;
  std::uniform_real_distribution<float> uniform;
  for (size_t i = 0; i < n; ++i) {
    const int used =
        random() % 3 == 0 ? static_cast<int>(random() % (static_cast<uint32_t>(slots) + 1)) : slots;
    const float mass = random() % 4 == 0 ? 1.0f + kRoundingSlack : uniform(random);
    for (int slot = 0; slot < slots; ++slot) {
      positions.ids.push_back(slot < used ? slot : -1);
      positions.behavior_log_probs.push_back(slot < used ? -6.0f : kMinusInfinity);
      positions.current_log_probs.push_back(slot < used ? std::log(mass / static_cast<float>(used))
                                                        : kNaN);
    }
    positions.sampled_ids.push_back(0);
    positions.behavior_sampled_log_probs.push_back(-6.0f);
    positions.current_sampled_log_probs.push_back(-5.0f);
  }
  return positions;
}

TEST_P(ValidityTest, GatheredIsThatOfTheDefinition) {
  constexpr float kValues[] = {kNaN,  -kNaN, kInfinity,      0.015625f, 0.01562501f, 0.0f,
                               88.5f, 200.f, kMinusInfinity, -1000.0f,  1e9f,        3e38f};
  std::mt19937 random(31);
  int all_valid = 0;
  int some_invalid = 0;
  for (int i = 0; i < 2000; ++i) {
    const int slots = 1 + static_cast<int>(random() % (i % 2 == 0   ? 6
                                                       : i % 8 == 1 ? kMaxBlockSlots
                                                                    : 40));
    const size_t n = 1 + random() % 40;
    Positions positions = ValidPositions(random, slots, n);
    // One value, of a slot that is used (else it is never sent) or of the sampled token; or none.
    if (const auto which = random() % 8; which == 0) {
      positions.current_sampled_log_probs[random() % n] = kValues[random() % std::size(kValues)];
    } else if (which < 6) {
      positions.current_log_probs[random() % positions.current_log_probs.size()] =
          kValues[random() % std::size(kValues)];
    }
    const auto first_position = static_cast<uint32_t>(random() % 9);
    const Packed packed(positions, first_position,
                        {i % 2 == 0 ? BlockEncoding::kFloat32 : BlockEncoding::kFixed16});
    const int64_t expected = CountInvalid(packed);
    // All slots have to be valid, those beyond k too.
    const int top_k = i % 3 == 0 ? 1 + static_cast<int>(random() % slots) : slots;
    const int curve[] = {1, top_k};
    EvaluateParameters parameters = {top_k, random(), i % 4 == 0};
    if (i % 5 == 0 && top_k > 1) parameters.prefix_curve = curve;
    ASSERT_EQ(Evaluate(backend(), parameters, 1, packed).sums.invalid, expected)
        << "K " << slots << ", k " << top_k << ", " << n << " positions";
    ++(expected == 0 ? all_valid : some_invalid);
  }
  EXPECT_GT(all_valid, 200);
  EXPECT_GT(some_invalid, 200);
}

// Numbers above the limit, up to the largest: whatever exponential they come to, they are seen.
TEST_P(ValidityTest, NoLogProbAboveTheLimitPasses) {
  constexpr int kSlots = 5;
  std::vector<float> values;
  for (float x = 0.0156251f; x < kInfinity; x *= 1.00013f) values.push_back(x);
  for (float x = 85.0f; x < 95.0f; x = std::nextafter(x, kInfinity) + 1e-4f) values.push_back(x);
  std::mt19937 random(32);
  Positions positions = ValidPositions(random, kSlots, values.size());
  const auto n = static_cast<int64_t>(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    for (size_t slot = i * kSlots; slot < (i + 1) * kSlots; ++slot) {
      positions.ids[slot] = static_cast<int32_t>(slot % kSlots);
      positions.behavior_log_probs[slot] = -6.0f;
      positions.current_log_probs[slot] = -8.0f;
    }
    positions.current_log_probs[i * kSlots + i % kSlots] = values[i];
  }
  EXPECT_EQ(Evaluate(backend(), {kSlots, 0}, 1, 0, positions).sums.invalid, n);
}

TEST_P(ValidityTest, ReducedIsThatOfTheDefinition) {
  constexpr float kEnvelopes[] = {kNaN, kInfinity, kMinusInfinity, 3e38f, 0.0f, -1.0f};
  constexpr float kMasses[] = {kNaN, kInfinity, -1e-9f, 0.0f, 1.015625f, 1.0156251f, 0.5f};
  constexpr float kSampled[] = {kNaN, 0.01562501f, 0.015625f, -1.0f, -2.0f, kMinusInfinity};
  std::mt19937 random(33);
  Positions positions = ValidPositions(random, 3, 4000);
  positions.current_log_probs.clear();
  for (float& sampled : positions.current_sampled_log_probs) {
    sampled = kSampled[random() % std::size(kSampled)];
    positions.log_envelopes.push_back(kEnvelopes[random() % std::size(kEnvelopes)]);
    positions.covered_masses.push_back(kMasses[random() % std::size(kMasses)]);
  }
  const Packed packed(positions, 0);
  const int64_t expected = CountInvalid(packed);
  EXPECT_GT(expected, 1000);
  EXPECT_LT(expected, 3900);
  EXPECT_EQ(Evaluate(backend(), {3, 0}, 1, packed).sums.invalid, expected);
}

}  // namespace
}  // namespace sis
