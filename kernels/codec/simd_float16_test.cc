#include "kernels/codec/simd_float16.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/codec/float16.h"
#include "kernels/simd_targets.h"
// After the list of the targets that are built.
#include "hwy/targets.h"

namespace sis {
namespace {

// Restores the choice of the machine.
class SimdFloat16Test : public testing::TestWithParam<int64_t> {
 protected:
  SimdFloat16Test() { Choose(GetParam()); }
  ~SimdFloat16Test() override { Choose(0); }

 private:
  static void Choose(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

TEST_P(SimdFloat16Test, EveryCodeAtEveryPlace) {
  std::vector<uint16_t> codes(1 << 16);
  std::iota(codes.begin(), codes.end(), 0);
  for (size_t first = 0; first < 40; ++first) {
    const std::span<const uint16_t> halves = std::span(codes).subspan(first);
    std::vector<float> values(halves.size(), 12345.0f);
    DecodeFloat16s(halves, values);
    for (size_t i = 0; i < halves.size(); ++i) {
      const float expected = DecodeFloat16(halves[i]);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(values[i])) << halves[i];
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), std::bit_cast<uint32_t>(expected))
            << halves[i];
      }
    }
  }
}

TEST_P(SimdFloat16Test, WritesNoMoreThanItReads) {
  const std::vector<uint16_t> codes(100, 0x3C00);
  for (size_t count = 0; count < 100; ++count) {
    std::vector<float> values(100, 5.0f);
    DecodeFloat16s(std::span(codes).first(count), values);
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], i < count ? 1.0f : 5.0f);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, SimdFloat16Test,
                         testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& info) { return hwy::TargetName(info.param); });

}  // namespace
}  // namespace sis
