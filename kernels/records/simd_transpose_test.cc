#include "kernels/records/simd_transpose.h"

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/numerics/simd_targets.h"
#include "kernels/records/encoding.h"
// After the list of the targets that are built.
#include "hwy/targets.h"

namespace sis {
namespace {

// Restores the choice of the machine.
class SimdTransposeTest : public testing::TestWithParam<int64_t> {
 protected:
  SimdTransposeTest() { Choose(GetParam()); }
  ~SimdTransposeTest() override { Choose(0); }

 private:
  static void Choose(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

TEST_P(SimdTransposeTest, EveryElementGoesToItsPlaceAndNowhereElse) {
  for (size_t slots = 0; slots <= 254; ++slots) {
    std::vector<uint32_t> ranks(slots * kGroupPositions);
    std::iota(ranks.begin(), ranks.end(),
              0xFF800000u);  // among them what floats call infinity, NaN
    std::vector<uint32_t> positions(ranks.size() + 8, 77);
    const bool done =
        TransposeOnVectors(std::as_bytes(std::span(ranks)),
                           std::as_writable_bytes(std::span(positions).first(ranks.size())));
    EXPECT_TRUE(!done || slots >= 4);
    if (GetParam() != HWY_SCALAR) {
      EXPECT_EQ(done, slots >= 4);
    }
    for (size_t position = 0; position < kGroupPositions; ++position) {
      for (size_t rank = 0; rank < slots; ++rank) {
        ASSERT_EQ(positions[position * slots + rank],
                  done ? ranks[rank * kGroupPositions + position] : 77);
      }
    }
    for (size_t i = ranks.size(); i < positions.size(); ++i) ASSERT_EQ(positions[i], 77);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, SimdTransposeTest,
                         testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const testing::TestParamInfo<int64_t>& info) {
                           return std::string(hwy::TargetName(info.param));
                         });

}  // namespace
}  // namespace sis
