// The shared functions give the same bits on the device as on the host. Where there is no device,
// that is said.
#include "kernels/cuda/evaluate/shared_functions.h"

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
  for (const LogProbEncoding encoding :
       {LogProbEncoding::kFloat32, LogProbEncoding::kFloat16, LogProbEncoding::kFixed12}) {
    // 0 down to -inf, subnormals included, and up to 1/64.
    for (uint32_t bits = 0x80000000; bits <= 0xFF800000; bits += 1024) {
      in.push_back({encoding, 1 + bits / 1024 % 4095, std::bit_cast<float>(bits)});
      in.push_back({encoding, 1 + bits / 1024 % 4095, std::bit_cast<float>(bits + 1)});
    }
    for (uint32_t bits = 0; bits <= 0x3C800000; bits += 4096) {
      in.push_back({encoding, 1 + bits / 4096 % 4095, std::bit_cast<float>(bits)});
    }
  }
  std::erase_if(in, [](const CodeInput& one) { return std::isnan(one.log_prob); });
  std::vector<CodeOutput> out(in.size());
  ASSERT_EQ(Code(in, out), "");
  for (size_t i = 0; i < in.size(); ++i) {
    const CodeOutput expected = CodeOne(in[i]);
    ASSERT_EQ(out[i].rounded_down, expected.rounded_down) << in[i].log_prob;
    ASSERT_EQ(out[i].rounded_up, expected.rounded_up) << in[i].log_prob;
    ASSERT_EQ(out[i].best_multiplier, expected.best_multiplier) << in[i].log_prob;
    ASSERT_EQ(Bits(out[i].decoded_down), Bits(expected.decoded_down)) << in[i].log_prob;
    ASSERT_EQ(Bits(out[i].decoded_up), Bits(expected.decoded_up)) << in[i].log_prob;
    // NaN, which no valid input holds, may have other bits.
    if (std::isnan(expected.float16_value)) continue;
    ASSERT_EQ(Bits(out[i].float16_value), Bits(expected.float16_value)) << in[i].log_prob;
  }
}

}  // namespace
}  // namespace sis::cuda
