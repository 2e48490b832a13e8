#include "kernels/records/simd_ragged_slots.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/numerics/simd_targets.h"
#include "kernels/records/fixed12.h"
#include "kernels/testing/random_positions.h"
// After the list of the targets that are built.
#include "hwy/targets.h"

namespace sis {
namespace {

// Sets of all lengths, of one position alone at high ranks as well; behind them anything.
void ExpectSlotsInOrder() {
  RandomPositions random(4);
  for (int round = 0; round < 600; ++round) {
    const size_t slots = 1 + random.Below(round % 3 == 0 ? 512 : round % 3 == 1 ? 40 : 7);
    const size_t most = round % 5 == 0 ? 0 : 1 + random.Below(round % 2 == 0 ? slots : 4);
    std::vector<float> log_probs;
    std::vector<int32_t> ids;
    std::array<uint16_t, kGroupPositions> used;
    for (size_t lane = 0; lane < kGroupPositions; ++lane) {
      const RandomPosition position = random.Next(slots);
      const size_t bound = lane == 5 ? position.used : std::min(position.used, most);
      used[lane] = static_cast<uint16_t>(random.Below(bound + 1));
      while (used[lane] > 0 && position.behavior[used[lane] - 1] < kFixed12Floor) --used[lane];
      for (size_t slot = 0; slot < slots; ++slot) {
        const bool is_used = slot < used[lane];
        log_probs.push_back(is_used         ? position.behavior[slot]
                            : slot % 2 == 0 ? std::numeric_limits<float>::quiet_NaN()
                                            : kMinusInfinity);
        ids.push_back(is_used ? static_cast<int32_t>(random.Below(1 << 24)) : -1);
      }
    }
    std::vector<uint32_t> codes(kGroupPositions * (slots + 1)), put_ids(codes.size());
    std::array<uint32_t, kGroupPositions> multipliers;
    std::vector<float> rounded(kGroupPositions * slots, 77);
    ASSERT_TRUE(
        EncodeRaggedOnVectors({log_probs.data(), ids.data(), slots, used.data()},
                              {codes.data(), put_ids.data(), multipliers.data(), rounded.data()}));
    size_t next = 0;
    for (size_t rank = 0; rank < slots; ++rank) {
      for (size_t lane = 0; lane < kGroupPositions; ++lane) {
        if (rank >= used[lane]) continue;
        const size_t slot = lane * slots + rank;
        const uint32_t multiplier = Fixed12Multiplier(log_probs[lane * slots + used[lane] - 1]);
        const uint32_t code = Fixed12RoundedDown(log_probs[slot], multiplier);
        ASSERT_EQ(multipliers[lane], multiplier);
        ASSERT_EQ(codes[next], code) << "K " << slots << ", lane " << lane << ", rank " << rank;
        ASSERT_EQ(put_ids[next], static_cast<uint32_t>(ids[slot]));
        ASSERT_EQ(std::bit_cast<uint32_t>(rounded[slot]),
                  std::bit_cast<uint32_t>(DecodeFixed12(code, multiplier)));
        ++next;
      }
    }
    std::vector<uint32_t> codes_alone(codes.size());
    ASSERT_TRUE(
        EncodeRaggedOnVectors({log_probs.data(), ids.data(), slots, used.data()},
                              {codes_alone.data(), put_ids.data(), multipliers.data(), nullptr}));
    codes.resize(next);
    codes_alone.resize(next);
    ASSERT_EQ(codes_alone, codes);
    for (size_t lane = 0; lane < kGroupPositions; ++lane) {
      if (used[lane] == 0) {
        ASSERT_EQ(multipliers[lane], 1u);
      }
    }
  }
}

TEST(SimdRaggedSlotsTest, SameAsOneByOneOnEveryTarget) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    if (target == HWY_SCALAR) continue;  // leaves it to the caller
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    ExpectSlotsInOrder();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace
}  // namespace sis
