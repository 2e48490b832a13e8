#include "client/api/reduce.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

#include "kernels/decide/decide.h"
#include "kernels/testing/reference.h"

namespace sis {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(ReduceTest, AgreesWithTheDefinitionInDouble) {
  constexpr int kSlots = 6;
  constexpr int kPositions = 500;
  std::mt19937 random(7);
  std::uniform_real_distribution<float> log_prob(-9.0f, -2.0f);
  std::vector<float> behavior, current;
  for (int i = 0; i < kPositions * kSlots; ++i) {
    const bool used = i % kSlots <= (i / kSlots) % kSlots;  // 1 to 6 slots
    behavior.push_back(used ? log_prob(random) : -kInfinity);
    current.push_back(used ? log_prob(random) : std::nanf(""));
  }
  for (int top_k = 1; top_k <= kSlots; ++top_k) {
    const ReducedSlots reduced = Reduce(behavior, current, kSlots, top_k);
    ASSERT_EQ(reduced.log_envelopes.size(), kPositions);
    ASSERT_EQ(reduced.covered_masses.size(), kPositions);
    for (int i = 0; i < kPositions; ++i) {
      const ReferencePosition expected =
          EvaluateReference(std::span(behavior).subspan(i * kSlots, top_k),
                            std::span(current).subspan(i * kSlots, top_k), -1, -1, true);
      EXPECT_NEAR(reduced.log_envelopes[i], expected.log_envelope, 1e-6);
      EXPECT_NEAR(reduced.covered_masses[i], 1 - expected.residual_mass, 1e-6);
    }
  }
}

TEST(ReduceTest, SpecialValues) {
  const std::vector<float> behavior = {-kInfinity, -kInfinity, -1, -2};
  const std::vector<float> current = {0, 0, -kInfinity, -kInfinity};
  const ReducedSlots reduced = Reduce(behavior, current, 2, 2);
  EXPECT_EQ(reduced.log_envelopes[0], -kInfinity);  // no slot used
  EXPECT_EQ(reduced.covered_masses[0], 0);
  EXPECT_EQ(reduced.log_envelopes[1], -kInfinity);  // no current mass
  EXPECT_EQ(reduced.covered_masses[1], 0);
}

}  // namespace
}  // namespace sis
