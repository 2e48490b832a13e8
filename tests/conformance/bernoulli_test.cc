// The draws. Seeds are fixed, so a test that passes once always passes; the bounds say what the
// chance of a false alarm was when it was written, and what it would have seen.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/numerics/sequence_key.h"
#include "tests/conformance/backends.h"
#include "tests/conformance/positions.h"

namespace sis {
namespace {

constexpr size_t kDraws = 1'000'000;

class BernoulliTest : public BackendTest {};
SIS_INSTANTIATE_BACKENDS(BernoulliTest);

// Positions in the REDUCED form whose acceptance probability is exp32(log_acceptance).
Packed PositionsThatAcceptWith(float log_acceptance, size_t n, uint32_t first_position = 0) {
  Positions positions;
  positions.slots = 1;
  positions.sampled_ids.assign(n, 0);
  positions.behavior_sampled_log_probs.assign(n, 0.0f);
  positions.ids.assign(n, 0);
  positions.behavior_log_probs.assign(n, 0.0f);
  positions.current_sampled_log_probs.assign(n, log_acceptance);
  positions.log_envelopes.assign(n, 0.0f);
  positions.covered_masses.assign(n, 1.0f);
  return Packed(positions, first_position);
}

// Whether each position is accepted. Bytes, because millions are counted and compared.
using Accepted = std::vector<uint8_t>;

Accepted Draw(const Backend& backend, const Packed& positions, uint64_t sequence_key,
              uint64_t draw) {
  const Results results = Evaluate(backend, {1, draw}, sequence_key, positions);
  Accepted accepted(results.decisions.size());
  std::ranges::transform(results.decisions, accepted.begin(), [](Decision decision) {
    return static_cast<uint8_t>(decision == Decision::kAccepted);
  });
  return accepted;
}

// X of n draws are accepted; (X - n a) / sqrt(n a (1 - a)) is standard normal. Its squares over 8
// values of a and the 4 words of a Philox block add up to a chi-square of 32 degrees of freedom,
// which exceeds 85.8 with a probability of 1e-6. At a = 1/2, n = 250,000 a shift of a by 0.005
// moves each of the 4 by 5 standard deviations: the sum then has mean 132 and standard deviation
// 21. The test therefore detects such a shift of this single a with a probability of about 0.99,
// and a shift of all of them always.
TEST_P(BernoulliTest, AcceptsAsOftenAsItShould) {
  constexpr uint64_t kKey = 0x5eed0001;
  double chi_square = 0;
  for (const double a : {0.001, 0.01, 0.1, 0.3, 0.5, 0.75, 0.95, 0.999}) {
    const auto log_acceptance = static_cast<float>(std::log(a));
    const Accepted accepted =
        Draw(backend(), PositionsThatAcceptWith(log_acceptance, kDraws), kKey, 0);
    const double exact = Exp32(log_acceptance);
    for (size_t lane = 0; lane < 4; ++lane) {
      int64_t count = 0;
      for (size_t i = lane; i < kDraws; i += 4) count += accepted[i];
      const double n = kDraws / 4;
      const double z =
          (static_cast<double>(count) - n * exact) / std::sqrt(n * exact * (1 - exact));
      EXPECT_TRUE(std::abs(z) < 5) << "a = " << a << ", lane " << lane << ": z = " << z;
      chi_square += z * z;
    }
  }
  EXPECT_TRUE(chi_square < 85.8) << chi_square;
}

// Half of the pairs of independent draws with a = 1/2 agree: z is standard normal, and beyond 5
// with a probability of 6e-7. A correlation of 0.01 shifts it by 10.
void ExpectIndependent(const Accepted& left, const Accepted& right, size_t lag, const char* what) {
  int64_t agreements = 0;
  const size_t n = left.size() - lag;
  for (size_t i = 0; i < n; ++i) agreements += left[i] == right[i + lag];
  const double z = (static_cast<double>(agreements) - 0.5 * n) / std::sqrt(0.25 * n);
  EXPECT_TRUE(std::abs(z) < 5) << what << ", lag " << lag << ": z = " << z;
}

// The exact half: no error of the exponential in it.
const float kLogHalf = -std::log(2.0f);

TEST_P(BernoulliTest, PositionsAreIndependent) {
  const Packed positions = PositionsThatAcceptWith(kLogHalf, kDraws);
  const Accepted accepted = Draw(backend(), positions, 0x5eed0002, 0);
  for (const size_t lag : {1, 2, 3, 4, 5, 8, 64, 4096}) {
    ExpectIndependent(accepted, accepted, lag, "positions");
  }
}

TEST_P(BernoulliTest, DrawsAttemptsSequencesAndSeedsAreIndependent) {
  const Packed positions = PositionsThatAcceptWith(kLogHalf, kDraws);
  const uint64_t key = SequenceKey(1, 0, "a");
  const Accepted accepted = Draw(backend(), positions, key, 0);
  for (const uint64_t draw : {uint64_t{1}, uint64_t{2}, uint64_t{1} << 32, ~uint64_t{0}}) {
    ExpectIndependent(accepted, Draw(backend(), positions, key, draw), 0, "draws");
  }
  for (const uint64_t other :
       {SequenceKey(1, 1, "a"), SequenceKey(1, 0, "b"), SequenceKey(2, 0, "a")}) {
    ExpectIndependent(accepted, Draw(backend(), positions, other, 0), 0, "keys");
  }
}

}  // namespace
}  // namespace sis
