#include "kernels/numerics/sequence_key.h"

#include <set>

#include "gtest/gtest.h"

namespace sis {
namespace {

// The FNV test suite gives 0x46810940eff5f915 for "chongo was here!\n". Its first 8 bytes serve as
// the seed, the next 4 as the attempt.
TEST(SequenceKeyTest, IsFnv1aOfSeedAttemptAndId) {
  constexpr uint64_t kSeed = 0x77206f676e6f6863;  // "chongo w", little-endian
  constexpr uint32_t kAttempt = 0x68207361;       // "as h"
  EXPECT_EQ(SequenceKey(kSeed, kAttempt, "ere!\n"), 0x46810940eff5f915);
}

TEST(SequenceKeyTest, TakesBytesAbove127AsUnsigned) {
  EXPECT_EQ(SequenceKey(7, 3, "s\xc3\xa9q-1"), 0xeeb8f7c4937759a7);
}

TEST(SequenceKeyTest, EveryPartMatters) {
  const std::set<uint64_t> keys = {
      SequenceKey(1, 0, "a"),        SequenceKey(2, 0, "a"), SequenceKey(1, 1, "a"),
      SequenceKey(1, 0, "b"),        SequenceKey(1, 0, ""),  SequenceKey(uint64_t{1} << 63, 0, "a"),
      SequenceKey(1, 1u << 31, "a"),
  };
  EXPECT_EQ(keys.size(), 7);
}

}  // namespace
}  // namespace sis
