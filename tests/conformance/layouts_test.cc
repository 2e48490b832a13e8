// However log-probs lie in memory, a backend gives the bytes that the scalar one gives for the same
// values, token-major.
#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/decide/scalar_backend.h"
#include "kernels/numerics/philox.h"
#include "kernels/records/log_probs.h"
#include "kernels/testing/decoded_log_probs.h"
#include "tests/conformance/backends.h"
#include "tests/conformance/positions.h"

namespace sis {
namespace {

constexpr uint64_t kSequenceKey = 0xfedcba9876543210;

// Of the records; current values are token-major.
enum class Layout { kTokenMajor, kGroupedFloat32, kGroupedFloat16, kGroupedFixed12 };
constexpr Layout kLayouts[] = {Layout::kTokenMajor, Layout::kGroupedFloat32,
                               Layout::kGroupedFloat16, Layout::kGroupedFixed12};

size_t Below(std::mt19937_64& random, size_t bound) { return random() % bound; }

float Uniform(std::mt19937_64& random, float low, float high) {
  return std::uniform_real_distribution<float>(low, high)(random);
}

// Towards zero, for |x| < 65536; NaN and infinities as they are.
uint16_t TruncateToFloat16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const float magnitude = std::abs(x);
  if (std::isnan(x)) return sign | 0x7e00;
  if (std::isinf(x)) return sign | 0x7c00;
  if (magnitude < 0x1p-14f) return sign | static_cast<uint16_t>(magnitude * 0x1p24f);
  return sign |
         static_cast<uint16_t>((std::bit_cast<uint32_t>(magnitude) >> 13) - ((127 - 15) << 10));
}

// A current log-prob: mostly near the behaviour policy's, now and then where the arithmetic has an
// edge.
float CurrentLogProb(std::mt19937_64& random, float behavior) {
  constexpr float kEdges[] = {-87.0f,   -87.000008f, -86.99999f,     -88.0f,     -103.9f,
                              -1000.0f, -3.4e38f,    kMinusInfinity, -0x1p-101f, -0x1p-149f};
  switch (Below(random, 16)) {
    case 0:
      return std::min(kEdges[Below(random, std::size(kEdges))], behavior);
    case 1:
    case 2:
      return behavior;
    default:
      return behavior - Uniform(random, 0.0f, Below(random, 4) == 0 ? 90.0f : 0.5f);
  }
}

// Positions of up to `slots` used slots, which are valid and hold every special value of
// docs/numerics.md.
Positions SpecialPositions(std::mt19937_64& random, int slots, size_t n, bool reduced) {
  Positions positions;
  positions.slots = slots;
  positions.sampled_ids.resize(n);
  for (size_t i = 0; i < n; ++i) {
    const size_t used = Below(random, 3) == 0 ? Below(random, slots + 1) : slots;
    std::vector<float> behavior(slots, kMinusInfinity);
    std::vector<float> current(slots, std::numeric_limits<float>::quiet_NaN());
    // Half of the mass at most: log-probs that add up to less than 1 whatever `used` is.
    for (size_t slot = 0; slot < used; ++slot) {
      behavior[slot] = -std::log(2.0f * static_cast<float>(slots)) - Uniform(random, 0.0f, 12.0f);
    }
    if (Below(random, 8) == 0 && used > 0) {
      for (float& log_prob : behavior) log_prob -= 6.0f;
      behavior[0] = -0x1p-20f;
    }
    std::sort(behavior.begin(), behavior.end(), std::greater<>());
    for (size_t slot = 0; slot < used; ++slot)
      current[slot] = CurrentLogProb(random, behavior[slot]);

    const bool inside = used > 0 && Below(random, 8) != 0;
    const size_t rank = inside ? Below(random, used) : kRankOutside;
    const float sampled = inside ? behavior[rank] : -Uniform(random, 0.0f, 20.0f);
    positions.behavior_sampled_log_probs.push_back(sampled);
    positions.sampled_ranks.push_back(static_cast<uint16_t>(rank));
    // Another computation than the slots' now and then: violations, and ratios far above 1.
    positions.current_sampled_log_probs.push_back(inside && Below(random, 8) != 0 ? current[rank]
                                                  : Below(random, 4) == 0
                                                      ? -Uniform(random, 0.0f, 0.1f)
                                                      : CurrentLogProb(random, sampled));
    positions.behavior_log_probs.insert(positions.behavior_log_probs.end(), behavior.begin(),
                                        behavior.end());
    if (!reduced) {
      positions.current_log_probs.insert(positions.current_log_probs.end(), current.begin(),
                                         current.end());
      continue;
    }
    constexpr float kEnvelopes[] = {kMinusInfinity, 0.0f,   -0.0f,   0x1p-101f, -0x1p-130f, 3.4e38f,
                                    -3.4e38f,       100.0f, -100.0f, 64.0f,     -64.0f,     88.5f};
    constexpr float kMasses[] = {0.0f, 0x1p-120f, 0x1p-149f, 1.0f, 1.015625f, 0.999f};
    positions.log_envelopes.push_back(Below(random, 3) == 0
                                          ? kEnvelopes[Below(random, std::size(kEnvelopes))]
                                          : Uniform(random, -2.0f, 4.0f));
    positions.covered_masses.push_back(Below(random, 3) == 0
                                           ? kMasses[Below(random, std::size(kMasses))]
                                           : Uniform(random, 0.0f, 1.0f));
  }
  return positions;
}

// A copy that begins `offset` elements into its allocation and ends with it, so that a sanitizer
// sees reads beyond the end.
template <typename T>
class Misaligned {
 public:
  Misaligned(std::span<const T> values, size_t offset) : storage_(offset), offset_(offset) {
    storage_.insert(storage_.end(), values.begin(), values.end());
    storage_.shrink_to_fit();
  }
  std::span<const T> span() const { return std::span(storage_).subspan(offset_); }

 private:
  std::vector<T> storage_;
  size_t offset_;
};

// What float16 holds of a log-prob: of finite ones -60000 at least.
uint16_t ToFloat16(float x) {
  return TruncateToFloat16(x == kMinusInfinity ? x : std::max(x, -60000.0f));
}

// Positions of K values in 12 bits.
std::vector<std::byte> PackFixed12(std::span<const float> values, size_t slots) {
  const size_t n = values.size() / slots;
  std::vector<uint16_t> used(n);
  std::vector<std::byte> rows(LogProbBytes(LogProbEncoding::kFixed12, n, slots));
  EncodeBehaviorLogProbs(LogProbEncoding::kFixed12, values, static_cast<int>(slots), used, rows);
  return rows;
}

// [n, K] values as `layout` has them, kept here.
class LaidOut {
 public:
  LaidOut(std::span<const float> values, size_t slots, Layout layout, size_t first_lane,
          size_t offset)
      : token_major_(layout == Layout::kTokenMajor ? values : std::span<const float>(), offset),
        layout_(layout),
        first_lane_(first_lane),
        floats_({}, 0),
        halves_({}, 0),
        packed_({}, 0) {
    if (layout == Layout::kTokenMajor) return;
    const size_t n = values.size() / slots;
    if (layout == Layout::kGroupedFixed12) {
      std::vector<float> padded(first_lane * slots, kMinusInfinity);
      padded.insert(padded.end(), values.begin(), values.end());
      packed_ = Misaligned<std::byte>(PackFixed12(padded, slots), offset);
      return;
    }
    const size_t groups = (first_lane + n + kGroupPositions - 1) / kGroupPositions;
    // NaN where no position is.
    std::vector<float> rows(groups * slots * kGroupPositions, std::nanf(""));
    for (size_t i = 0; i < n; ++i) {
      const size_t lane = first_lane + i;
      for (size_t slot = 0; slot < slots; ++slot) {
        rows[(lane / kGroupPositions * slots + slot) * kGroupPositions + lane % kGroupPositions] =
            values[i * slots + slot];
      }
    }
    if (layout == Layout::kGroupedFloat32) {
      floats_ = Misaligned<float>(rows, offset);
    } else {
      std::vector<uint16_t> halves(rows.size());
      std::transform(rows.begin(), rows.end(), halves.begin(), ToFloat16);
      halves_ = Misaligned<uint16_t>(halves, offset);
    }
  }

  std::span<const float> token_major() const { return token_major_.span(); }
  GroupedLogProbs grouped() const {
    switch (layout_) {
      case Layout::kTokenMajor:
        return {};
      case Layout::kGroupedFloat32:
        return {std::as_bytes(floats_.span()), LogProbEncoding::kFloat32,
                static_cast<uint8_t>(first_lane_)};
      case Layout::kGroupedFloat16:
        return {std::as_bytes(halves_.span()), LogProbEncoding::kFloat16,
                static_cast<uint8_t>(first_lane_)};
      case Layout::kGroupedFixed12:
        return {packed_.span(), LogProbEncoding::kFixed12, static_cast<uint8_t>(first_lane_)};
    }
    __builtin_unreachable();
  }

 private:
  Misaligned<float> token_major_;
  Layout layout_;
  size_t first_lane_;
  Misaligned<float> floats_;
  Misaligned<uint16_t> halves_;
  Misaligned<std::byte> packed_;
};

// What `layout` can hold of the values.
std::vector<float> Rounded(const std::vector<float>& values, size_t slots, Layout layout) {
  std::vector<float> rounded = values;
  if (layout == Layout::kGroupedFixed12) {
    DecodeLogProbs(LogProbEncoding::kFixed12, PackFixed12(values, slots), static_cast<int>(slots),
                   rounded);
  }
  if (layout == Layout::kGroupedFloat16) {
    for (float& value : rounded) value = DecodeFloat16(ToFloat16(value));
  }
  return rounded;
}

// Points of a prefix curve, or none.
std::vector<int> RandomCurve(std::mt19937_64& random, int top_k) {
  std::vector<int> curve;
  if (Below(random, 2) == 0) return curve;
  for (int k = 1; k <= top_k && curve.size() < kMaxPrefixPoints; ++k) {
    if (Below(random, 1 + top_k / 8) == 0) curve.push_back(k);
  }
  return curve;
}

class LayoutsTest : public BackendTest {
 protected:
  // Evaluates positions as laid out, and compares with what the scalar backend gives token-major.
  static void ExpectSameAsScalar(const EvaluateParameters& parameters, const Positions& positions,
                                 uint32_t first_position, Layout layout, std::mt19937_64& random) {
    Positions rounded = positions;
    rounded.behavior_log_probs = Rounded(positions.behavior_log_probs, parameters.slots, layout);
    const Results expected =
        Evaluate(ScalarBackend(), parameters, kSequenceKey, first_position, rounded);

    const size_t slots = parameters.slots;
    const size_t lane = Below(random, 2) * Below(random, kGroupPositions);
    const LaidOut behavior(positions.behavior_log_probs, slots, layout, lane, Below(random, 4));
    const Misaligned<float> current(positions.current_log_probs, Below(random, 4));
    const Misaligned<float> behavior_sampled(positions.behavior_sampled_log_probs,
                                             Below(random, 4));
    const Misaligned<float> current_sampled(positions.current_sampled_log_probs, Below(random, 4));
    const Misaligned<uint16_t> ranks(positions.sampled_ranks, Below(random, 16));
    const std::vector<uint8_t> narrow_ranks(positions.sampled_ranks.begin(),
                                            positions.sampled_ranks.end());
    const Misaligned<uint8_t> byte_ranks(narrow_ranks, Below(random, 16));
    const bool are_bytes = slots <= kMaxTopKOfByteRanks && Below(random, 2) == 0;
    const Misaligned<float> envelopes(positions.log_envelopes, Below(random, 4));
    const Misaligned<float> masses(positions.covered_masses, Below(random, 4));

    Results results(positions.size(), parameters.prefix_curve.size());
    Stretch stretch =
        StretchOf(positions, 0, positions.size(), kSequenceKey, first_position, results);
    stretch.behavior = {
        behavior.token_major(), behavior_sampled.span(),
        are_bytes ? RankSpan(byte_ranks.span().data(), positions.size()) : RankSpan(ranks.span()),
        behavior.grouped()};
    stretch.current = {current_sampled.span(), current.span(), envelopes.span(), masses.span()};
    backend().Evaluate(parameters, std::span(&stretch, 1));
    ASSERT_TRUE(SameBytes(expected, results))
        << "K " << parameters.slots << ", k " << parameters.top_k << ", " << positions.size()
        << " positions from " << first_position << ", layout " << static_cast<int>(layout)
        << " from lane " << lane;
  }

  // Every K, with all lengths and starts, and each layout many times.
  static void ExpectAllLayouts(bool reduced) {
    std::mt19937_64 random(21);
    for (int slots :
         {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 16, 17, 31, 33, 50, 64, 100, 128, 255, 256, 512}) {
      for (const Layout layout : kLayouts) {
        for (const size_t n :
             {size_t{1}, size_t{15}, size_t{16}, size_t{17}, size_t{64}, 1 + Below(random, 150)}) {
          const int top_k =
              Below(random, 2) == 0 ? slots : 1 + static_cast<int>(Below(random, slots));
          const auto first_position = static_cast<uint32_t>(Below(random, 1000));
          const std::vector<int> curve = reduced ? std::vector<int>() : RandomCurve(random, top_k);
          ExpectSameAsScalar({slots, top_k, random(), !reduced && Below(random, 4) == 0, curve},
                             SpecialPositions(random, slots, n, reduced), first_position, layout,
                             random);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
};
SIS_INSTANTIATE_BACKENDS(LayoutsTest);

TEST_P(LayoutsTest, Gathered) { ExpectAllLayouts(false); }

TEST_P(LayoutsTest, Reduced) { ExpectAllLayouts(true); }

TEST_P(LayoutsTest, SumsOfMorePositionsThanFitIn32Bits) {
  std::mt19937_64 random(22);
  Positions positions = SpecialPositions(random, 2, 20000, true);
  // Every addend as large as it can be.
  std::ranges::fill(positions.log_envelopes, 3.4e38f);
  std::ranges::fill(positions.current_sampled_log_probs, kMinusInfinity);
  ExpectSameAsScalar({2, 2, 0}, positions, 0, Layout::kTokenMajor, random);
  std::ranges::fill(positions.log_envelopes, -3.4e38f);
  std::ranges::fill(positions.covered_masses, 0.0f);
  ExpectSameAsScalar({2, 2, 0}, positions, 0, Layout::kTokenMajor, random);
  std::ranges::fill(positions.log_envelopes, 0.0f);
  std::ranges::fill(positions.covered_masses, 1.0f);
  positions.current_sampled_log_probs = positions.behavior_sampled_log_probs;
  ExpectSameAsScalar({2, 2, 0}, positions, 0, Layout::kTokenMajor, random);
}

TEST_P(LayoutsTest, PositionsUpToTheLast) {
  std::mt19937_64 random(23);
  for (uint32_t first_position : {0xffffffffu - 200, 0x80000000u - 70, 0x7fffffffu}) {
    ExpectSameAsScalar({10, 10, ~uint64_t{0}}, SpecialPositions(random, 10, 150, false),
                       first_position, Layout::kTokenMajor, random);
  }
}

// Without the flush of the envelope, a log-ratio that was flushed would lie above it.
TEST_P(LayoutsTest, TinyEnvelopesAreFlushed) {
  std::mt19937_64 random(25);
  for (const bool reduced : {false, true}) {
    Positions positions;
    positions.slots = 1;
    positions.sampled_ids.assign(40, 0);
    positions.sampled_ranks.assign(40, 0);
    positions.behavior_log_probs.assign(40, -0x1p-110f);
    positions.behavior_sampled_log_probs = positions.behavior_log_probs;
    positions.current_sampled_log_probs.assign(40, -0x1p-101f);
    if (reduced) {
      positions.log_envelopes.assign(40, -0x1p-101f);
      positions.covered_masses.assign(40, 1.0f);
    } else {
      positions.current_log_probs = positions.current_sampled_log_probs;
    }
    ExpectSameAsScalar({1, 1, 0}, positions, 0, Layout::kTokenMajor, random);
    const Results results = Evaluate(backend(), {1, 1, 0}, kSequenceKey, 0, positions);
    EXPECT_EQ(results.sums.envelope_violations, 0);
    EXPECT_EQ(results.sums.accepted, 40);
  }
}

// Uniforms right at the threshold: r < T must hold for r = T - 1 and fail for r = T.
TEST_P(LayoutsTest, TheThresholdIsExact) {
  constexpr size_t kCount = 4096;
  Positions positions;
  positions.slots = 1;
  std::mt19937_64 random(24);
  for (size_t i = 0; i < kCount; ++i) {
    const uint32_t r =
        AcceptanceUniforms(kSequenceKey, static_cast<uint32_t>(i / 4), 7).word[i % 4];
    // The log-ratio, in [-22, 0], with T as near to r as a float's exponential gets.
    float log_ratio = static_cast<float>(std::log(static_cast<double>(r) * 0x1p-32));
    for (int step = static_cast<int>(Below(random, 5)) - 2; step != 0; step -= step > 0 ? 1 : -1) {
      log_ratio = std::nextafter(log_ratio, step > 0 ? 0.0f : -100.0f);
    }
    positions.sampled_ids.push_back(0);
    positions.sampled_ranks.push_back(0);
    positions.behavior_sampled_log_probs.push_back(0.0f);
    positions.behavior_log_probs.push_back(0.0f);
    positions.current_sampled_log_probs.push_back(log_ratio);
    positions.log_envelopes.push_back(0.0f);
    positions.covered_masses.push_back(1.0f);
  }
  ExpectSameAsScalar({1, 1, 7}, positions, 0, Layout::kTokenMajor, random);
}

}  // namespace
}  // namespace sis
