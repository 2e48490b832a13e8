// A backend gives the same bytes as the scalar backend gives for the float32 log-probs that the
// block encodes. This holds for every K, encoding and length of sets, and wherever a range begins
// in its block and the values in memory.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/testing/scalar_backend.h"
#include "tests/conformance/backends.h"
#include "tests/conformance/positions.h"

namespace sis {
namespace {

constexpr uint64_t kSequenceKey = 0xfedcba9876543210;

// How many of their slots positions use.
enum class Sets { kMany, kFew };

size_t Below(std::mt19937_64& random, size_t bound) { return random() % bound; }

float Uniform(std::mt19937_64& random, float low, float high) {
  return std::uniform_real_distribution<float>(low, high)(random);
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

// Positions that are valid and hold every special value of docs/numerics.md. They use
// mostly all `slots`, or few, as sets cut to their mass do.
Positions SpecialPositions(std::mt19937_64& random, int slots, Sets sets, size_t n, bool reduced) {
  Positions positions;
  positions.slots = slots;
  for (size_t i = 0; i < n; ++i) {
    const bool few = sets == Sets::kFew && Below(random, 64) != 0;
    const size_t used = few                     ? Below(random, std::min(slots, 8) + 1)
                        : Below(random, 3) == 0 ? Below(random, slots + 1)
                                                : slots;
    std::vector<float> behavior(slots, kMinusInfinity);
    std::vector<float> current(slots);
    // Half of the mass at most: log-probs that add up to less than 1 whatever `used` is.
    for (size_t slot = 0; slot < used; ++slot) {
      behavior[slot] = -std::log(2.0f * static_cast<float>(slots)) - Uniform(random, 0.0f, 12.0f);
    }
    if (Below(random, 8) == 0 && used > 0) {
      for (float& log_prob : behavior) log_prob -= 6.0f;
      behavior[0] = -0x1p-20f;
    }
    // No code of fixed16 stands for it.
    if (Below(random, 16) == 0 && used > 1) behavior[used - 1] = -70.0f;
    std::sort(behavior.begin(), behavior.end(), std::greater<>());
    for (size_t slot = 0; slot < used; ++slot)
      current[slot] = CurrentLogProb(random, behavior[slot]);

    const bool inside = used > 0 && Below(random, 8) != 0;
    const size_t rank = inside ? Below(random, used) : slots;
    const float sampled = inside ? behavior[rank] : -Uniform(random, 0.0f, 20.0f);
    positions.behavior_sampled_log_probs.push_back(sampled);
    for (size_t slot = 0; slot < static_cast<size_t>(slots); ++slot) {
      positions.ids.push_back(slot < used ? static_cast<int32_t>(slot) : -1);
    }
    positions.sampled_ids.push_back(static_cast<int32_t>(rank));
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

// Points of a prefix curve, or none.
std::vector<int> RandomCurve(std::mt19937_64& random, int top_k) {
  std::vector<int> curve;
  if (Below(random, 2) == 0) return curve;
  for (int k = 1; k <= top_k && curve.size() < kMaxPrefixPoints; ++k) {
    if (Below(random, 1 + top_k / 8) == 0) curve.push_back(k);
  }
  return curve;
}

// The scalar backend, which reads log-probs that were decoded for it.
class ScalarOnFloats final : public Backend {
 public:
  std::string_view name() const override { return "scalar_on_floats"; }
  void Evaluate(const EvaluateParameters& parameters,
                std::span<const BackendRange> ranges) const override {
    for (BackendRange range : ranges) {
      BlockRange& behavior = range.behavior;
      std::vector<float> log_probs;
      for (size_t i = 0; i < behavior.size(); ++i) {
        for (size_t slot = 0; slot < behavior.counts[i]; ++slot) {
          log_probs.push_back(behavior.LogProbAt(i, log_probs.size()));
        }
      }
      behavior.encoding = BlockEncoding::kFloat32;
      behavior.log_probs = std::as_bytes(std::span(log_probs)).data();
      behavior.multipliers = {};
      ScalarBackend().Evaluate(parameters, {&range, 1});
    }
  }
};

class BlocksTest : public BackendTest {
 protected:
  static void ExpectSameAsScalar(const EvaluateParameters& parameters, const Packed& packed,
                                 size_t first = 0, size_t count = SIZE_MAX) {
    const auto evaluated_by = [&](const Backend& evaluating) {
      return Evaluate(evaluating, parameters, kSequenceKey, packed, first, count);
    };
    ASSERT_TRUE(SameBytes(evaluated_by(ScalarOnFloats()), evaluated_by(backend())))
        << "k " << parameters.top_k << ", positions of the block from " << first << " of "
        << packed.size();
  }

  static void ExpectAllBlocks(bool reduced) {
    std::mt19937_64 random(21);
    for (const int slots :
         {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 16, 17, 31, 33, 50, 64, 100, 128, 253, 254}) {
      for (const BlockEncoding encoding : {BlockEncoding::kFloat32, BlockEncoding::kFixed16}) {
        for (const Sets sets : {Sets::kMany, Sets::kFew}) {
          for (const size_t n : {size_t{1}, size_t{15}, size_t{16}, size_t{17}, size_t{64},
                                 1 + Below(random, 150)}) {
            const int top_k =
                Below(random, 2) == 0 ? slots : 1 + static_cast<int>(Below(random, slots));
            const std::vector<int> curve =
                reduced ? std::vector<int>() : RandomCurve(random, top_k);
            const Packed packed(SpecialPositions(random, slots, sets, n, reduced),
                                static_cast<uint32_t>(Below(random, 1000)), {encoding},
                                Below(random, 4));
            const size_t first = Below(random, 2) * Below(random, n);
            ASSERT_NO_FATAL_FAILURE(ExpectSameAsScalar(
                {top_k, random(), !reduced && Below(random, 4) == 0, curve}, packed, first,
                Below(random, 2) == 0 ? n : 1 + Below(random, n - first)))
                << "K " << slots << ", encoding " << static_cast<int>(encoding) << ", "
                << (sets == Sets::kFew ? "few" : "many") << " slots used";
          }
        }
      }
    }
  }
};
SIS_INSTANTIATE_BACKENDS(BlocksTest);

TEST_P(BlocksTest, Gathered) { ExpectAllBlocks(false); }

TEST_P(BlocksTest, Reduced) { ExpectAllBlocks(true); }

TEST_P(BlocksTest, SumsOfMorePositionsThanFitIn32Bits) {
  std::mt19937_64 random(22);
  Positions positions = SpecialPositions(random, 2, Sets::kMany, 20000, true);
  // Every addend as large as it can be.
  std::ranges::fill(positions.log_envelopes, 3.4e38f);
  std::ranges::fill(positions.current_sampled_log_probs, kMinusInfinity);
  ExpectSameAsScalar({2, 0}, Packed(positions, 0));
  std::ranges::fill(positions.log_envelopes, -3.4e38f);
  std::ranges::fill(positions.covered_masses, 0.0f);
  ExpectSameAsScalar({2, 0}, Packed(positions, 0));
  std::ranges::fill(positions.log_envelopes, 0.0f);
  std::ranges::fill(positions.covered_masses, 1.0f);
  positions.current_sampled_log_probs = positions.behavior_sampled_log_probs;
  ExpectSameAsScalar({2, 0}, Packed(positions, 0));
}

TEST_P(BlocksTest, PositionsUpToTheLast) {
  std::mt19937_64 random(23);
  for (uint32_t first_position : {0xffffffffu - 200, 0x80000000u - 70, 0x7fffffffu}) {
    ExpectSameAsScalar(
        {10, ~uint64_t{0}},
        Packed(SpecialPositions(random, 10, Sets::kMany, 150, false), first_position));
  }
}

}  // namespace
}  // namespace sis
