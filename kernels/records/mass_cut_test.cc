#include "kernels/records/mass_cut.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/numerics/exp32.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/records/log_probs.h"
#include "kernels/records/record_view.h"
#include "kernels/testing/random_positions.h"

namespace sis {
namespace {

using testing::ElementsAre;

constexpr double kTargets[] = {0.5, 0.9, 0.97, 0.999, 0.999999};

// Positions of which the one at row i has its sampled token in slot i mod (slots + 1), or outside.
struct Rows {
  size_t slots;
  std::vector<int32_t> ids;
  std::vector<float> log_probs;
  std::vector<uint16_t> ranks;

  void Add(const RandomPosition& position) {
    const size_t rank = ranks.size() % (slots + 1);
    ranks.push_back(rank < position.used ? static_cast<uint16_t>(rank) : kRankOutside);
    for (size_t slot = 0; slot < slots; ++slot) {
      ids.push_back(slot < position.used ? static_cast<int32_t>(slot) : -1);
      log_probs.push_back(position.behavior[slot]);
    }
  }
  Rows Cut(double mass) const {
    Rows cut = *this;
    CutToMass(mass, slots, cut.ids, cut.log_probs, cut.ranks);
    return cut;
  }
  float Mass(size_t row, size_t count) const {
    const auto first = log_probs.begin() + row * slots;
    return std::accumulate(first, first + count, 0.0f,
                           [](float mass, float log_prob) { return mass + Exp32(log_prob); });
  }
  size_t Used(size_t row) const {
    const auto first = ids.begin() + row * slots;
    return std::find(first, first + slots, -1) - first;
  }
  friend bool operator==(const Rows&, const Rows&) = default;
};

Rows RandomRows(uint32_t seed, size_t slots, size_t count) {
  RandomPositions random(seed);
  Rows rows{slots, {}, {}, {}};
  for (size_t i = 0; i < count; ++i) rows.Add(random.Next(slots));
  return rows;
}

TEST(CutToMassTest, IsTheShortestPrefixOnRandomPositions) {
  size_t cut = 0, sampled = 0;
  for (const size_t slots : {1, 2, 10, 100, kMaxTopK}) {
    const Rows rows = RandomRows(static_cast<uint32_t>(slots), slots, 500);
    for (const double mass : kTargets) {
      const Rows kept = rows.Cut(mass);
      for (size_t row = 0; row < rows.ranks.size(); ++row) {
        const size_t used = kept.Used(row);
        for (size_t slot = 0; slot < slots; ++slot) {
          const size_t i = row * slots + slot;
          ASSERT_EQ(kept.ids[i], slot < used ? rows.ids[i] : -1);
          ASSERT_EQ(kept.log_probs[i], slot < used ? rows.log_probs[i] : kMinusInfinity);
        }
        ASSERT_EQ(kept.ranks[row], rows.ranks[row] < used ? rows.ranks[row] : kRankOutside);
        if (used > 0) {
          ASSERT_LT(kept.Mass(row, used - 1), mass);
        }
        if (used < rows.Used(row)) {
          ASSERT_GE(kept.Mass(row, used), mass);
          ++cut;
          sampled += kept.ranks[row] != rows.ranks[row];
        }
      }
    }
  }
  EXPECT_GT(cut, 5000u);
  EXPECT_GT(sampled, 500u);
}

// So a client may cut too, and what was fetched may be sent again: rounded down it reaches the
// target no earlier.
TEST(CutToMassTest, ACutRecordIsCutNoFurtherNorIsARoundedOne) {
  for (const size_t slots : {3, 20, 150}) {
    const Rows rows = RandomRows(static_cast<uint32_t>(slots), slots, 500);
    for (const double mass : kTargets) {
      const Rows kept = rows.Cut(mass);
      ASSERT_EQ(kept.Cut(mass), kept);
      for (const LogProbEncoding encoding :
           {LogProbEncoding::kFloat32, LogProbEncoding::kFloat16, LogProbEncoding::kFixed12}) {
        Rows rounded = kept;
        std::vector<uint16_t> used(rows.ranks.size());
        RoundBehaviorRows(encoding, kept.log_probs, static_cast<int>(slots), rounded.log_probs,
                          used);
        ASSERT_EQ(rounded.Cut(mass).log_probs, rounded.log_probs);
      }
    }
  }
}

}  // namespace
}  // namespace sis
