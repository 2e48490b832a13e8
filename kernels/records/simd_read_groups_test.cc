#include "kernels/records/simd_read_groups.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/numerics/simd_targets.h"
#include "kernels/records/log_probs.h"
#include "kernels/records/packed_row.h"
#include "kernels/testing/decoded_log_probs.h"
// After the list of the targets that are built.
#include "hwy/targets.h"

namespace sis {
namespace {

// Restores the choice of the machine.
class ReadGroupsTest : public testing::TestWithParam<int64_t> {
 protected:
  ReadGroupsTest() { Choose(GetParam()); }
  ~ReadGroupsTest() override { Choose(0); }

  std::mt19937 random_{20261126};

 private:
  static void Choose(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

// What is read has to end where its memory does, and what is written too: sanitizers look.
TEST_P(ReadGroupsTest, LogProbsGoToTheirPlaces) {
  for (const LogProbEncoding encoding :
       {LogProbEncoding::kFloat32, LogProbEncoding::kFloat16, LogProbEncoding::kFixed12}) {
    for (size_t slots = 1; slots <= 512; slots += slots < 20 ? 1 : 13) {
      for (const bool full : {true, false}) {
        std::vector<float> log_probs(kGroupPositions * slots);
        for (size_t lane = 0; lane < kGroupPositions; ++lane) {
          const size_t used = full || lane % 3 == 0 ? slots : random_() % (slots + 1);
          for (size_t slot = 0; slot < slots; ++slot) {
            log_probs[lane * slots + slot] =
                slot < used ? -0.01f * static_cast<float>(lane + 1) * static_cast<float>(slot)
                            : kMinusInfinity;
          }
        }
        std::vector<uint16_t> used(kGroupPositions);
        std::vector<std::byte> group(GroupBytes(encoding, slots));
        EncodeBehaviorLogProbs(encoding, log_probs, static_cast<int>(slots), used, group);
        std::vector<float> expected(log_probs.size());
        DecodeLogProbs(encoding, group, static_cast<int>(slots), expected);
        std::vector<float> read(log_probs.size());
        ReadLogProbGroup(encoding, group, read);
        ASSERT_EQ(std::memcmp(read.data(), expected.data(), read.size() * sizeof(float)), 0)
            << "K " << slots;
        const bool all_used = std::ranges::count(used, slots) == kGroupPositions;
        ASSERT_EQ(UsesEverySlot(encoding, group, slots), all_used) << "K " << slots;
      }
    }
  }
}

TEST_P(ReadGroupsTest, IdsGoToTheirPlaces) {
  for (int bits = 1; bits <= 32; ++bits) {
    for (size_t slots = 1; slots <= 512; slots += slots < 20 ? 1 : 39) {
      std::vector<int32_t> expected(kGroupPositions * slots);
      std::vector<std::byte> rows(slots * PackedRowBytes(bits));
      for (size_t rank = 0; rank < slots; ++rank) {
        RowValues values;
        for (size_t lane = 0; lane < kGroupPositions; ++lane) {
          // Among them, of 32 bits, what floats call infinity and NaN.
          values[lane] = random_() % 4 == 0 ? 0xFFFFFFFFu >> (32 - bits) : random_() >> (32 - bits);
          expected[lane * slots + rank] = static_cast<int32_t>(values[lane]);
        }
        PackRow(values, bits, std::span(rows).subspan(rank * PackedRowBytes(bits)));
      }
      std::vector<int32_t> ids(expected.size());
      ReadIdGroup(rows, bits, ids);
      ASSERT_EQ(ids, expected) << "K " << slots << ", " << bits << " bits";
      std::vector<RowValues> one_by_one(slots), unpacked(slots);
      UnpackRows(rows, bits, one_by_one);
      UnpackRowsOnVectors(rows, bits, unpacked);
      ASSERT_EQ(unpacked, one_by_one) << "K " << slots << ", " << bits << " bits";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, ReadGroupsTest,
                         testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const testing::TestParamInfo<int64_t>& info) {
                           return std::string(hwy::TargetName(info.param));
                         });

}  // namespace
}  // namespace sis
