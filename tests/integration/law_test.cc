// The law of accepted tokens over a real connection, by enumeration: for every v in V_K, let y = v
// and check q(v) a(v) M = p(v), with M bitwise the same for all v (docs/math.md).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/numerics/exp32.h"
#include "server/testing/live_server.h"
#include "tests/integration/random_policies.h"

namespace sis {
namespace {

constexpr int kVocabulary = 40;
constexpr int kTopK = 12;

// One position per sequence, named after its policies and its sampled token.
struct Enumeration {
  std::vector<v1::AppendRequest> appends;
  v1::EvaluateRequest evaluate;
};

// For each pair, one sequence for every token of V_K, and one for a token outside.
Enumeration Enumerate(const std::vector<PolicyPair>& pairs, const std::string& run_id) {
  Enumeration result;
  result.appends.push_back(LiveServer::Header(run_id, kVocabulary));
  v1::AppendBatch& batch = *result.appends.emplace_back().mutable_batch();
  result.evaluate.mutable_run()->set_run_id(run_id);
  result.evaluate.add_outputs(v1::ACCEPTANCE_PROBABILITIES);
  result.evaluate.add_outputs(v1::DECISIONS);
  std::vector<float> gathered;
  std::vector<float> sampled;
  for (size_t i = 0; i < pairs.size(); ++i) {
    std::vector<int32_t> tokens = pairs[i].ids;
    for (int32_t v = 0; v < kVocabulary; ++v) {
      if (std::ranges::find(pairs[i].ids, v) == pairs[i].ids.end()) {
        tokens.push_back(v);
        break;
      }
    }
    for (const int32_t token : tokens) {
      const std::string id = absl::StrCat(i, "/", token);
      v1::Block& block = *batch.add_entries()->mutable_block();
      block.mutable_sequence()->set_id(id);
      block.set_sampled_ids(Bytes<int32_t>({token}));
      block.set_sampled_log_probs(Bytes<float>({pairs[i].behavior[token]}));
      block.set_top_k_ids(Bytes(pairs[i].ids));
      block.set_top_k_log_probs(Bytes(pairs[i].log_probs));
      v1::Slice& slice = *result.evaluate.add_slices();
      slice.mutable_sequence()->set_id(id);
      slice.set_length(1);
      gathered.insert(gathered.end(), pairs[i].gathered.begin(), pairs[i].gathered.end());
      sampled.push_back(pairs[i].current[token]);
    }
  }
  result.evaluate.mutable_gathered()->set_log_probs(Bytes(gathered));
  result.evaluate.mutable_gathered()->set_sampled_log_probs(Bytes(sampled));
  return result;
}

TEST(Law, AcceptedTokensFollowTheCurrentPolicyOverARealConnection) {
  LiveServer live;
  live.CreateRun(LiveServer::RunRequest("law", kTopK, kVocabulary));
  RandomPolicies policies(/*seed=*/20, kVocabulary, kTopK);
  std::vector<PolicyPair> pairs;
  for (int i = 0; i < 500; ++i) pairs.push_back(policies.Next(/*drift=*/i % 5 * 0.2));
  const Enumeration enumeration = Enumerate(pairs, "law");

  const LiveServer::Appended appended = live.Append(enumeration.appends);
  ASSERT_TRUE(appended.status.ok()) << appended.status.error_message();
  for (const v1::Ack& ack : appended.acks) ASSERT_EQ(ack.code(), 0) << ack.message();

  v1::EvaluateResponse response;
  const grpc::Status status = live.Evaluate(enumeration.evaluate, response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const auto a = Values<float>(response.acceptance_probabilities());
  const auto decisions = Values<uint8_t>(response.decisions());
  ASSERT_EQ(a.size(), pairs.size() * (kTopK + 1));

  for (size_t i = 0; i < pairs.size(); ++i) {
    double envelope = 0;
    for (int slot = 0; slot < kTopK; ++slot) {
      envelope = std::max(
          envelope, std::exp(double{pairs[i].gathered[slot]} - double{pairs[i].log_probs[slot]}));
    }
    const size_t first = i * (kTopK + 1);
    double marginal = 0;
    for (int slot = 0; slot < kTopK; ++slot) {
      const double q = std::exp(double{pairs[i].log_probs[slot]});
      const double p = std::exp(double{pairs[i].gathered[slot]});
      // a = exp32(x): x collects the roundings of two log-ratios and of their difference, each half
      // a unit in the last place of a number below 2 * 16 (so 2^-20), and exp32 adds one unit in
      // the last place, 2^-23.
      const double bound = 3 * 0x1p-20 + 0x1p-23;
      EXPECT_NEAR(q * a[first + slot] * envelope / p, 1, bound)
          << "position " << i << ", slot " << slot;
      EXPECT_EQ(response.slice_totals(first + slot).log_envelope(),
                response.slice_totals(first).log_envelope());
      marginal += q * a[first + slot];
    }
    // The marginal accept rate is (1 - xi) / M, as reported.
    EXPECT_NEAR(marginal, response.slice_totals(first).expected_acceptance(), 1e-5);
    // Outside V_K nothing is ever accepted.
    EXPECT_EQ(a[first + kTopK], 0);
    EXPECT_EQ(decisions[first + kTopK], v1::OUTSIDE_TOP_K);
  }
  EXPECT_LE(response.totals().d_sis(), response.totals().d());
}

// In a run with a mass target the set is as long as the behaviour policy alone says, so the law
// holds on it.
TEST(Law, AcceptedTokensFollowTheCurrentPolicyOnSetsThatTheServerCuts) {
  constexpr double kMass = 0.8;
  LiveServer live;
  v1::CreateRunRequest request = LiveServer::RunRequest("cut", kTopK, kVocabulary);
  request.mutable_config()->set_mass(kMass);
  live.CreateRun(request);
  RandomPolicies policies(/*seed=*/23, kVocabulary, kTopK);
  std::vector<PolicyPair> pairs;
  for (int i = 0; i < 300; ++i) pairs.push_back(policies.Next(/*drift=*/i % 5 * 0.2));
  const Enumeration enumeration = Enumerate(pairs, "cut");
  const LiveServer::Appended appended = live.Append(enumeration.appends);
  for (const v1::Ack& ack : appended.acks) ASSERT_EQ(ack.code(), 0) << ack.message();

  v1::EvaluateResponse response;
  const grpc::Status status = live.Evaluate(enumeration.evaluate, response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const auto a = Values<float>(response.acceptance_probabilities());
  const auto decisions = Values<uint8_t>(response.decisions());
  int cut = 0;
  for (size_t i = 0; i < pairs.size(); ++i) {
    double envelope = 0;
    float covered = 0;
    int used = 0;
    for (; used < kTopK && covered < kMass; ++used) {
      covered = covered + Exp32(pairs[i].log_probs[used]);
      envelope = std::max(
          envelope, std::exp(double{pairs[i].gathered[used]} - double{pairs[i].log_probs[used]}));
    }
    cut += kTopK - used;
    const size_t first = i * (kTopK + 1);
    double marginal = 0;
    for (int slot = 0; slot <= kTopK; ++slot) {
      EXPECT_EQ(response.slice_totals(first + slot).log_envelope(),
                response.slice_totals(first).log_envelope());
      if (slot >= used) {
        EXPECT_EQ(a[first + slot], 0);
        EXPECT_EQ(decisions[first + slot], v1::OUTSIDE_TOP_K);
        continue;
      }
      const double q = std::exp(double{pairs[i].log_probs[slot]});
      const double p = std::exp(double{pairs[i].gathered[slot]});
      const double bound = 3 * 0x1p-20 + 0x1p-23;  // as above
      EXPECT_NEAR(q * a[first + slot] * envelope / p, 1, bound)
          << "position " << i << ", slot " << slot;
      marginal += q * a[first + slot];
    }
    EXPECT_NEAR(marginal, response.slice_totals(first).expected_acceptance(), 1e-5);
  }
  EXPECT_GT(cut, 300);
}

TEST(Law, EqualPoliciesAcceptAllOfTheSet) {
  LiveServer live;
  live.CreateRun(LiveServer::RunRequest("equal", kTopK, kVocabulary));
  RandomPolicies policies(/*seed=*/21, kVocabulary, kTopK);
  std::vector<PolicyPair> pairs;
  for (int i = 0; i < 200; ++i) pairs.push_back(policies.Next(/*drift=*/0));
  Enumeration enumeration = Enumerate(pairs, "equal");
  const LiveServer::Appended appended = live.Append(enumeration.appends);
  for (const v1::Ack& ack : appended.acks) ASSERT_EQ(ack.code(), 0) << ack.message();
  for (uint64_t draw = 0; draw < 20; ++draw) {
    enumeration.evaluate.set_draw(draw);
    v1::EvaluateResponse response;
    const grpc::Status status = live.Evaluate(enumeration.evaluate, response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.totals().accepted(), pairs.size() * kTopK);
    EXPECT_EQ(response.totals().outside_top_k(), pairs.size());
    EXPECT_EQ(response.totals().d(), 0);
  }
}

}  // namespace
}  // namespace sis
