// Every backend against the golden vectors, byte for byte: decisions, probabilities, ratios and
// sums.
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/decide/validate_current.h"
#include "kernels/numerics/philox.h"
#include "kernels/numerics/sequence_key.h"
#include "tests/conformance/backends.h"
#include "tests/conformance/golden_reader.h"
#include "tests/conformance/positions.h"

namespace sis {
namespace {

// Expected results of one position.
struct ExpectedPosition {
  uint8_t rank;
  uint8_t decision;
  uint8_t accept_bit;
  uint8_t envelope_violation;
  uint32_t uniform;
  float log_envelope;
  float covered_mass;
  uint32_t acceptance_probability;  // bits
  uint32_t log_modified_ratio;      // bits
  uint32_t modified_ratio;          // bits
};

struct Case {
  uint64_t sequence_key;
  uint32_t first_position;
  EvaluateParameters parameters;
  Positions positions;
  std::vector<ExpectedPosition> expected;
  std::string accept_bits;
  Sums sums;
  std::vector<int> prefix_curve;  // the k of its points, empty if REDUCED
  std::vector<PrefixSums> prefix_sums;
};

Case ReadCase(GoldenReader& golden, bool reduced) {
  Case c;
  const uint64_t seed = golden.Uint64();
  const uint32_t attempt = golden.Uint32();
  c.sequence_key = SequenceKey(seed, attempt, golden.Bytes());
  c.first_position = golden.Uint32();
  c.parameters.draw = golden.Uint64();
  const int slots = golden.Uint8();
  c.parameters.top_k = golden.Uint8();
  const uint32_t n = golden.Uint32();
  Positions& positions = c.positions;
  positions.slots = slots;
  for (uint32_t i = 0; i < n; ++i) {
    golden.Record(positions.slots, positions.sampled_ids, positions.behavior_sampled_log_probs,
                  positions.ids, positions.behavior_log_probs);
    positions.current_sampled_log_probs.push_back(golden.Float());
    if (reduced) {
      positions.log_envelopes.push_back(golden.Float());
      positions.covered_masses.push_back(golden.Float());
    } else {
      for (int slot = 0; slot < slots; ++slot) {
        positions.current_log_probs.push_back(golden.Float());
      }
    }
    ExpectedPosition expected;
    expected.rank = golden.Uint8();
    expected.decision = golden.Uint8();
    expected.accept_bit = golden.Uint8();
    expected.envelope_violation = golden.Uint8();
    expected.uniform = golden.Uint32();
    expected.log_envelope = golden.Float();
    expected.covered_mass = golden.Float();
    expected.acceptance_probability = golden.Uint32();
    expected.log_modified_ratio = golden.Uint32();
    expected.modified_ratio = golden.Uint32();
    c.expected.push_back(expected);
  }
  c.accept_bits = golden.Bytes();
  for (int64_t* sum : {&c.sums.accepted, &c.sums.rejected, &c.sums.outside_top_k,
                       &c.sums.envelope_violations, &c.sums.d, &c.sums.d_sis, &c.sums.log_envelope,
                       &c.sums.residual_mass, &c.sums.acceptance_probability,
                       &c.sums.expected_acceptance, &c.sums.k3, &c.sums.total_variation}) {
    *sum = golden.Int64();
  }
  if (reduced) return c;
  const int points = golden.Uint8();
  for (int i = 0; i < points; ++i) {
    c.prefix_curve.push_back(golden.Uint8());
    PrefixSums sums;
    sums.residual_mass = golden.Int64();
    sums.expected_acceptance = golden.Int64();
    c.prefix_sums.push_back(sums);
  }
  return c;
}

uint32_t Bits(float x) { return std::bit_cast<uint32_t>(x); }

void ExpectCase(const Backend& backend, BlockEncoding encoding, const Case& c) {
  const Packed packed(c.positions, c.first_position, {encoding});
  const size_t n = packed.size();
  const BlockView& block = packed.blocks()[0];
  const CurrentView current = packed.Current(0, n);
  const absl::Status valid =
      ValidateCurrent(BlockRange(block, 0, static_cast<uint32_t>(n)), current, c.first_position);
  ASSERT_TRUE(valid.ok()) << valid;

  EvaluateParameters parameters = c.parameters;
  parameters.total_variation = !current.reduced();
  parameters.prefix_curve = c.prefix_curve;
  const Results results = Evaluate(backend, parameters, c.sequence_key, packed);
  std::string accept_bits((n + 7) / 8, '\0');
  for (size_t i = 0; i < n; ++i) {
    const ExpectedPosition& expected = c.expected[i];
    const auto position = static_cast<uint32_t>(c.first_position + i);
    SCOPED_TRACE(position);
    ASSERT_EQ(block.ranks[i], expected.rank);
    ASSERT_EQ(
        AcceptanceUniforms(c.sequence_key, position / 4, c.parameters.draw).word[position % 4],
        expected.uniform);
    ASSERT_EQ(static_cast<uint8_t>(results.decisions[i]), expected.decision);
    ASSERT_EQ(Bits(results.log_envelopes[i]), Bits(expected.log_envelope));
    ASSERT_EQ(Bits(results.covered_masses[i]), Bits(expected.covered_mass));
    ASSERT_EQ(Bits(results.acceptance_probabilities[i]), expected.acceptance_probability);
    ASSERT_EQ(Bits(results.log_modified_ratios[i]), expected.log_modified_ratio);
    ASSERT_EQ(Bits(results.modified_ratios[i]), expected.modified_ratio);
    const bool accepted = results.decisions[i] == Decision::kAccepted;
    ASSERT_EQ(accepted, expected.accept_bit == 1);
    if (accepted) accept_bits[i / 8] |= static_cast<char>(1 << (i % 8));

    // A violation shows in the position's own sums.
    const Results alone = Evaluate(backend, c.parameters, c.sequence_key, packed, i, 1);
    ASSERT_EQ(alone.sums.envelope_violations, expected.envelope_violation);
  }
  EXPECT_EQ(accept_bits, c.accept_bits);
  EXPECT_TRUE(results.sums == c.sums);
  EXPECT_TRUE(results.prefix_sums == c.prefix_sums);

  // A backend may leave calls with a curve to another one. It evaluates these calls itself.
  parameters.prefix_curve = {};
  Results without_curve = Evaluate(backend, parameters, c.sequence_key, packed);
  without_curve.prefix_sums = results.prefix_sums;
  EXPECT_TRUE(SameBytes(without_curve, results));
}

class GoldenDecisionsTest : public BackendTest {
 protected:
  static void ExpectFile(const char* name, BlockEncoding encoding, bool reduced) {
    GoldenReader golden(name);
    int cases = 0;
    for (; !golden.AtEnd(); ++cases) {
      SCOPED_TRACE(testing::Message() << name << ", case " << cases);
      ExpectCase(backend(), encoding, ReadCase(golden, reduced));
      if (HasFailure()) return;
    }
    EXPECT_GT(cases, 10);
  }
};
SIS_INSTANTIATE_BACKENDS(GoldenDecisionsTest);

TEST_P(GoldenDecisionsTest, Gathered) {
  ExpectFile("decisions_gathered.txt", BlockEncoding::kFloat32, false);
}

TEST_P(GoldenDecisionsTest, GatheredFixed16) {
  ExpectFile("decisions_fixed16.txt", BlockEncoding::kFixed16, false);
}

TEST_P(GoldenDecisionsTest, Reduced) {
  ExpectFile("decisions_reduced.txt", BlockEncoding::kFloat32, true);
}

}  // namespace
}  // namespace sis
