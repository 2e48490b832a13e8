// The shared functions give the same bits on the device as on the host. Skipped without a device.
#include "kernels/cuda/testing/shared_functions.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

namespace sis::cuda {
namespace {

class SharedFunctionsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (!HasDevice(&why)) GTEST_SKIP() << "no CUDA device: " << why;
  }
};

uint32_t Bits(float x) { return std::bit_cast<uint32_t>(x); }

TEST_F(SharedFunctionsTest, Exp32IsTheSame) {
  std::vector<float> x;
  for (uint32_t bits = 0x80000000; bits <= 0xC2C00000; bits += 1009) {
    x.push_back(std::bit_cast<float>(bits));               // 0 down to -96
    x.push_back(std::bit_cast<float>(bits & 0x7FFFFFFF));  // 0 up to 96
  }
  std::vector<float> y(x.size(), -1);
  ASSERT_EQ(Exp32(x, y), "");
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(Bits(y[i]), Bits(sis::Exp32(x[i]))) << "x = " << x[i];
  }
}

TEST_F(SharedFunctionsTest, DecisionsAreTheSame) {
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  std::vector<DecideInput> in(200000);
  for (DecideInput& one : in) {
    one.behavior_sampled_log_prob = -std::abs(4 * normal(random));
    one.current_sampled_log_prob =
        random() % 50 == 0 ? kMinusInfinity : -std::abs(4 * normal(random));
    one.envelope = {random() % 50 == 0 ? kMinusInfinity : normal(random),
                    std::abs(normal(random)) / 8};
    one.in_top_k = random() % 8 != 0;
    one.sequence_key = random();
    one.position = static_cast<uint32_t>(random());
    one.draw = random();
  }
  std::vector<DecideOutput> out(in.size());
  ASSERT_EQ(Decide(in, out), "");
  for (size_t i = 0; i < in.size(); ++i) {
    const DecideOutput expected = DecideOne(in[i]);
    ASSERT_EQ(out[i].result.decision, expected.result.decision) << i;
    ASSERT_EQ(out[i].result.envelope_violation, expected.result.envelope_violation) << i;
    ASSERT_EQ(Bits(out[i].result.acceptance_probability),
              Bits(expected.result.acceptance_probability))
        << i;
    ASSERT_EQ(Bits(out[i].log_modified_ratio), Bits(expected.log_modified_ratio)) << i;
    ASSERT_EQ(Bits(out[i].modified_ratio), Bits(expected.modified_ratio)) << i;
    ASSERT_EQ(out[i].sums, expected.sums) << i;
  }
}

TEST_F(SharedFunctionsTest, CodesAreTheSame) {
  std::vector<CodeInput> in;
  for (uint32_t multiplier = 1; multiplier <= kMaxMultiplier16; ++multiplier) {
    for (uint32_t code = multiplier % 7; code <= kLowestCode16; code += 7) {
      in.push_back({code, multiplier});
    }
    in.push_back({kLowestCode16, multiplier});
  }
  std::vector<float> out(in.size());
  ASSERT_EQ(Fixed16(in, out), "");
  for (size_t i = 0; i < in.size(); ++i) {
    ASSERT_EQ(Bits(out[i]), Bits(sis::Fixed16(in[i].code, in[i].multiplier))) << in[i].code;
  }
}

}  // namespace
}  // namespace sis::cuda
