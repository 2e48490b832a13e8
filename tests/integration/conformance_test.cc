// The conformance suite's positions by way of a live server, in every encoding: what comes back is
// byte for byte what the scalar backend gives for the values that the encoding keeps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/decide/scalar_backend.h"
#include "kernels/numerics/sequence_key.h"
#include "kernels/records/log_probs.h"
#include "kernels/testing/decoded_log_probs.h"
#include "tests/conformance/policy_pairs.h"
#include "tests/conformance/positions.h"
#include "tests/integration/connection.h"

namespace sis {
namespace {

constexpr uint64_t kSeed = 99;
constexpr char kSequence[] = "s";

struct Encoding {
  v1::LogProbEncoding wire;
  LogProbEncoding kernel;
};
constexpr Encoding kEncodings[] = {{v1::FLOAT32, LogProbEncoding::kFloat32},
                                   {v1::FLOAT16, LogProbEncoding::kFloat16},
                                   {v1::FIXED12, LogProbEncoding::kFixed12}};

// What the encoding keeps of the records. A slot too improbable for it is as if unused.
Positions Stored(const Positions& exact, LogProbEncoding encoding) {
  Positions stored = exact;
  std::vector<uint16_t> used(exact.size());
  std::vector<std::byte> rows(LogProbBytes(encoding, exact.size(), exact.slots));
  EncodeBehaviorLogProbs(encoding, exact.behavior_log_probs, exact.slots, used, rows);
  DecodeLogProbs(encoding, rows, exact.slots, stored.behavior_log_probs);
  for (size_t i = 0; i < exact.size(); ++i) {
    if (stored.sampled_ranks[i] >= used[i]) stored.sampled_ranks[i] = kRankOutside;
    for (int slot = used[i]; slot < exact.slots; ++slot) stored.ids[i * exact.slots + slot] = -1;
  }
  return stored;
}

// In blocks of any length, so that some records are in packed pages and some are not yet.
void AppendInBlocks(Connection& connection, const std::string& run, const Positions& positions,
                    std::mt19937_64& random) {
  std::vector<v1::AppendRequest> requests{LiveServer::Header(run, kPairVocabularySize)};
  for (size_t first = 0; first < positions.size();) {
    const size_t count = std::min<size_t>(1 + random() % 200, positions.size() - first);
    const Positions part = positions.Slice(first, count);
    v1::Block& block = *requests.emplace_back().mutable_batch()->add_entries()->mutable_block();
    block.mutable_sequence()->set_id(kSequence);
    block.set_first_position(static_cast<uint32_t>(first));
    block.set_sampled_ids(Bytes(part.sampled_ids));
    block.set_sampled_log_probs(Bytes(part.behavior_sampled_log_probs));
    block.set_top_k_ids(Bytes(part.ids));
    block.set_top_k_log_probs(Bytes(part.behavior_log_probs));
    first += count;
  }
  const LiveServer::Appended appended = connection.Append(requests);
  ASSERT_TRUE(appended.status.ok()) << appended.status.error_message();
  for (const v1::Ack& ack : appended.acks) ASSERT_EQ(ack.code(), 0) << ack.message();
}

void ExpectFetched(Connection& connection, const std::string& run, uint32_t first,
                   const Positions& part) {
  v1::FetchTopKRequest request;
  request.mutable_run()->set_run_id(run);
  v1::Slice& slice = *request.add_slices();
  slice.mutable_sequence()->set_id(kSequence);
  slice.set_first_position(first);
  slice.set_length(static_cast<uint32_t>(part.size()));
  v1::FetchTopKChunk rows;
  const grpc::Status status = connection.FetchTopK(request, rows);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(rows.length(), part.size());
  EXPECT_EQ(rows.sampled_ids(), Bytes(part.sampled_ids));
  EXPECT_EQ(rows.sampled_log_probs(), Bytes(part.behavior_sampled_log_probs));
  EXPECT_EQ(rows.top_k_ids(), Bytes(part.ids));
  EXPECT_EQ(rows.top_k_log_probs(), Bytes(part.behavior_log_probs));
}

// How a trainer may send the current policy's values.
enum class Form { kGathered, kReduced };
constexpr Form kForms[] = {Form::kGathered, Form::kReduced};

// The positions as they are in this form.
Positions InForm(Form form, int top_k, const Positions& positions) {
  return form == Form::kReduced ? Reduce(positions, top_k) : positions;
}

v1::EvaluateRequest RequestFor(const std::string& run, const EvaluateParameters& parameters,
                               Form form, uint32_t first, const Positions& part) {
  v1::EvaluateRequest request;
  request.mutable_run()->set_run_id(run);
  v1::Slice& slice = *request.add_slices();
  slice.mutable_sequence()->set_id(kSequence);
  slice.set_first_position(first);
  slice.set_length(static_cast<uint32_t>(part.size()));
  request.set_draw(parameters.draw);
  request.set_top_k(parameters.top_k);
  request.set_total_variation(parameters.total_variation);
  for (const int k : parameters.prefix_curve) request.add_prefix_curve(k);
  const std::string sampled = Bytes(part.current_sampled_log_probs);
  if (form == Form::kReduced) {
    request.mutable_reduced()->set_sampled_log_probs(sampled);
    request.mutable_reduced()->set_log_envelopes(Bytes(part.log_envelopes));
    request.mutable_reduced()->set_covered_masses(Bytes(part.covered_masses));
  } else {
    request.mutable_gathered()->set_sampled_log_probs(sampled);
    request.mutable_gathered()->set_log_probs(Bytes(part.current_log_probs));
  }
  for (const v1::Output output :
       {v1::DECISIONS, v1::RATIOS, v1::LOG_RATIOS, v1::ACCEPTANCE_PROBABILITIES}) {
    request.add_outputs(output);
  }
  return request;
}

void ExpectSame(const v1::EvaluateResponse& response, const Results& expected) {
  ASSERT_EQ(response.missing_size(), 0);
  EXPECT_EQ(response.decisions(), Bytes(expected.decisions));
  EXPECT_EQ(response.ratios(), Bytes(expected.modified_ratios));
  EXPECT_EQ(response.log_ratios(), Bytes(expected.log_modified_ratios));
  EXPECT_EQ(response.acceptance_probabilities(), Bytes(expected.acceptance_probabilities));
  const v1::Totals& totals = response.totals();
  EXPECT_EQ(totals.accepted(), expected.sums.accepted);
  EXPECT_EQ(totals.rejected(), expected.sums.rejected);
  EXPECT_EQ(totals.outside_top_k(), expected.sums.outside_top_k);
  EXPECT_EQ(totals.envelope_violations(), expected.sums.envelope_violations);
  EXPECT_EQ(totals.d(), FromFixed(expected.sums.d));
  EXPECT_EQ(totals.d_sis(), FromFixed(expected.sums.d_sis));
  EXPECT_EQ(totals.log_envelope(), FromFixed(expected.sums.log_envelope));
  EXPECT_EQ(totals.residual_mass(), FromFixed(expected.sums.residual_mass));
  EXPECT_EQ(totals.acceptance_probability(), FromFixed(expected.sums.acceptance_probability));
  EXPECT_EQ(totals.expected_acceptance(), FromFixed(expected.sums.expected_acceptance));
  EXPECT_EQ(totals.k3(), FromFixed(expected.sums.k3));
  EXPECT_EQ(totals.total_variation(), FromFixed(expected.sums.total_variation));
  ASSERT_EQ(response.prefix_curve_size(), expected.prefix_sums.size());
  for (int i = 0; i < response.prefix_curve_size(); ++i) {
    const PrefixSums& sums = expected.prefix_sums[i];
    EXPECT_EQ(response.prefix_curve(i).residual_mass(), FromFixed(sums.residual_mass)) << i;
    EXPECT_EQ(response.prefix_curve(i).expected_acceptance(), FromFixed(sums.expected_acceptance))
        << i;
  }
}

TEST(ConformanceTest, ALiveServerGivesTheBytesOfTheScalarBackend) {
  Connection connection;
  std::mt19937_64 random(40);
  for (const int slots : {1, 5, 10, 50}) {
    for (const Encoding& encoding : kEncodings) {
      SCOPED_TRACE(absl::StrCat("K ", slots, ", encoding ", encoding.wire));
      const std::string run = absl::StrCat("run-", slots, "-", encoding.wire);
      v1::CreateRunRequest create = LiveServer::RunRequest(run, slots, kPairVocabularySize, kSeed);
      create.mutable_config()->set_log_prob_encoding(encoding.wire);
      connection.live().CreateRun(create);
      const Positions exact = RandomPositions(random, slots, 700);
      AppendInBlocks(connection, run, exact, random);
      const Positions stored = Stored(exact, encoding.kernel);
      ExpectFetched(connection, run, 0, stored);

      for (int i = 0; i < 12; ++i) {
        const Form form = kForms[i % std::size(kForms)];
        SCOPED_TRACE(absl::StrCat("request ", i));
        const int top_k = 1 + static_cast<int>(random() % slots);
        std::vector<int> curve = {(top_k + 1) / 2};
        if (top_k > curve.back()) curve.push_back(top_k);
        EvaluateParameters parameters{slots, top_k, random(), i % 2 == 0, curve};
        if (form == Form::kReduced) {
          parameters.total_variation = false;
          parameters.prefix_curve = {};
        }
        const bool all = i < std::size(kForms);
        const auto first = static_cast<uint32_t>(all ? 0 : random() % exact.size());
        const size_t count = all ? exact.size() : 1 + random() % (exact.size() - first);
        const Positions part = InForm(form, top_k, stored.Slice(first, count));

        v1::EvaluateResponse response;
        const grpc::Status status =
            connection.Evaluate(RequestFor(run, parameters, form, first, part), response);
        ASSERT_TRUE(status.ok()) << status.error_message();
        ExpectSame(response, Evaluate(ScalarBackend(), parameters, SequenceKey(kSeed, 0, kSequence),
                                      first, part));
      }
    }
  }
}

}  // namespace
}  // namespace sis
