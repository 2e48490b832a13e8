#include "server/evaluate/accept_bits.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace sis {
namespace {

TEST(AcceptBitsTest, OneBitPerPosition) {
  std::mt19937 random(1);
  for (size_t count = 0; count < 200; ++count) {
    std::vector<Decision> decisions(count);
    for (Decision& decision : decisions) {
      decision = static_cast<Decision>(random() % 2 == 0 ? 1 : random() % 256);
    }
    const std::string bits = PackAcceptBits(decisions);
    ASSERT_EQ(bits.size(), (count + 7) / 8);
    for (size_t i = 0; i < bits.size() * 8; ++i) {
      EXPECT_EQ(bits[i / 8] >> (i % 8) & 1, i < count && decisions[i] == Decision::kAccepted)
          << i << " of " << count;
    }
  }
}

}  // namespace
}  // namespace sis
