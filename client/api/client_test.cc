// The client against a scripted service.
#include "client/api/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "client/testing/scripted_service.h"

namespace sis {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using ClientTest = ScriptedServiceTest;

v1::FetchTopKResponse FetchHeader(std::vector<uint32_t> lengths, uint32_t top_k) {
  v1::FetchTopKResponse response;
  v1::FetchTopKHeader& header = *response.mutable_header();
  header.set_lease_id(17);
  header.set_top_k(top_k);
  for (const uint32_t length : lengths) {
    v1::Slice& slice = *header.add_slices();
    slice.mutable_sequence()->set_id("a");
    slice.set_first_position(10);
    slice.set_length(length);
    slice.set_record_digest(1000 + length);
  }
  return response;
}

v1::FetchTopKResponse FetchChunk(uint32_t slice, uint32_t first_position, int length, int top_k) {
  v1::FetchTopKResponse response;
  v1::FetchTopKChunk& chunk = *response.mutable_chunk();
  chunk.set_slice(slice);
  chunk.set_first_position(first_position);
  chunk.set_length(length);
  std::vector<int32_t> sampled_ids, ids;
  std::vector<float> sampled_log_probs, log_probs;
  for (int row = 0; row < length; ++row) {
    sampled_ids.push_back(static_cast<int32_t>(100 * slice + first_position + row));
    sampled_log_probs.push_back(-1.0f * static_cast<float>(row));
    for (int slot = 0; slot < top_k; ++slot) {
      ids.push_back(slot);
      log_probs.push_back(-2.0f * static_cast<float>(row));
    }
  }
  chunk.set_sampled_ids(Bytes(sampled_ids));
  chunk.set_sampled_log_probs(Bytes(sampled_log_probs));
  chunk.set_top_k_ids(Bytes(ids));
  chunk.set_top_k_log_probs(Bytes(log_probs));
  return response;
}

TEST_F(ClientTest, FetchTopKPutsChunksTogether) {
  v1::FetchTopKResponse header = FetchHeader({3, 0, 1}, 2);
  v1::MissingRange& missing = *header.mutable_header()->add_missing();
  missing.set_slice(2);
  missing.set_first_position(10);
  missing.set_length(1);
  missing.set_reason(v1::EVICTED);
  service_.AnswerFetch(
      {header, FetchChunk(0, 10, 2, 2), FetchChunk(0, 12, 1, 2), FetchChunk(2, 10, 1, 2)});
  const std::vector<Slice> slices = {{{"a", 1}, 10}, {{"a"}, 10}, {{"a"}, 10, 1}};
  const auto records = client_->FetchTopK({"run"}, slices, {.lease = absl::Seconds(3)});
  ASSERT_TRUE(records.ok()) << records.status();
  EXPECT_EQ(records->lease_id, 17);
  EXPECT_EQ(records->top_k, 2);
  EXPECT_EQ(records->positions(), 4);
  EXPECT_THAT(records->sampled_ids, ElementsAre(10, 11, 12, 210));
  EXPECT_THAT(records->sampled_log_probs, ElementsAre(0, -1, 0, 0));
  EXPECT_THAT(records->ids, ElementsAre(0, 1, 0, 1, 0, 1, 0, 1));
  EXPECT_THAT(records->log_probs, ElementsAre(0, 0, -2, -2, 0, 0, 0, 0));
  ASSERT_EQ(records->slices.size(), 3);
  EXPECT_EQ(records->slices[0].length, 3);
  EXPECT_EQ(records->slices[0].record_digest, 1003);
  ASSERT_EQ(records->missing.size(), 1);
  EXPECT_EQ(records->missing[0].slice(), 2);
  EXPECT_EQ(records->missing[0].reason(), v1::EVICTED);
  const v1::FetchTopKRequest request = service_.fetch_request();
  EXPECT_EQ(request.lease_seconds(), 3);
  ASSERT_EQ(request.slices_size(), 3);
  EXPECT_EQ(request.slices(0).sequence().attempt(), 1);
  EXPECT_EQ(request.slices(2).length(), 1);
}

TEST_F(ClientTest, FetchTopKRefusesRepliesThatDoNotFit) {
  const v1::FetchTopKResponse header = FetchHeader({3}, 2);
  v1::FetchTopKResponse short_array = FetchChunk(0, 10, 3, 2);
  short_array.mutable_chunk()->mutable_top_k_ids()->pop_back();
  const std::vector<std::vector<v1::FetchTopKResponse>> replies = {
      {},                                                          // no header
      {header},                                                    // no rows
      {header, FetchChunk(0, 10, 2, 2)},                           // too few
      {header, FetchChunk(0, 10, 4, 2)},                           // too many
      {header, FetchChunk(0, 11, 3, 2)},                           // a gap
      {header, FetchChunk(1, 10, 3, 2)},                           // an unknown slice
      {header, FetchChunk(0, 10, 3, 2), FetchChunk(0, 13, 1, 2)},  // beyond the end
      {FetchChunk(0, 10, 3, 2), header},                           // the wrong order
      {header, header, FetchChunk(0, 10, 3, 2)},                   // two headers
      {header, short_array},
  };
  const std::vector<Slice> slices = {{{"a"}, 10, 3}};
  for (size_t i = 0; i < replies.size(); ++i) {
    service_.AnswerFetch(replies[i]);
    const auto records = client_->FetchTopK({"run"}, slices);
    EXPECT_EQ(records.status().code(), absl::StatusCode::kInternal) << "reply " << i;
  }
}

TEST_F(ClientTest, EvaluateSendsEitherFormAndReadsWhatWasAskedFor) {
  const std::vector<float> log_probs = {-1, -2, -3, -4}, sampled = {-5, -6};
  const std::vector<float> envelopes = {0.5f, 0.25f}, masses = {0.75f, 1.0f};
  const std::vector<Slice> slices = {{{"a", 4}, 3, 2, 99}};
  v1::EvaluateResponse answer;
  answer.set_accept_bits(std::string(1, '\x02'));
  answer.mutable_totals()->set_accepted(1);
  answer.add_slice_totals()->set_rejected(1);
  answer.set_newly_counted(2);
  service_.AnswerEvaluate(answer);
  auto evaluation = client_->Evaluate({"run"}, slices, GatheredValues{log_probs, sampled},
                                      {.draw = 12, .top_k = 1, .lease_id = 5});
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  EXPECT_FALSE(evaluation->accepted(0));
  EXPECT_TRUE(evaluation->accepted(1));
  EXPECT_EQ(evaluation->totals.accepted(), 1);
  EXPECT_EQ(evaluation->slice_totals.size(), 1);
  EXPECT_EQ(evaluation->newly_counted, 2);
  v1::EvaluateRequest request = service_.evaluate_request();
  EXPECT_EQ(request.draw(), 12);
  EXPECT_EQ(request.top_k(), 1);
  EXPECT_EQ(request.lease_id(), 5);
  EXPECT_EQ(request.slices(0).record_digest(), 99);
  EXPECT_EQ(request.slices(0).length(), 2);
  EXPECT_EQ(Array<float>(request.gathered().log_probs()), log_probs);
  EXPECT_EQ(Array<float>(request.gathered().sampled_log_probs()), sampled);

  answer.clear_accept_bits();
  answer.set_decisions("\x02\x01");
  answer.set_ratios(Bytes<float>({0.5f, 1}));
  answer.set_log_ratios(Bytes<float>({-0.5f, 0}));
  answer.set_acceptance_probabilities(Bytes<float>({0.25f, 0.75f}));
  service_.AnswerEvaluate(answer);
  evaluation = client_->Evaluate(
      {"run"}, slices, ReducedValues{sampled, envelopes, masses},
      {.outputs = {v1::DECISIONS, v1::RATIOS, v1::LOG_RATIOS, v1::ACCEPTANCE_PROBABILITIES}});
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  EXPECT_THAT(evaluation->decisions, ElementsAre(Decision::kRejected, Decision::kAccepted));
  EXPECT_THAT(evaluation->ratios, ElementsAre(0.5f, 1));
  EXPECT_THAT(evaluation->log_ratios, ElementsAre(-0.5f, 0));
  EXPECT_THAT(evaluation->acceptance_probabilities, ElementsAre(0.25f, 0.75f));
  request = service_.evaluate_request();
  EXPECT_EQ(Array<float>(request.reduced().sampled_log_probs()), sampled);
  EXPECT_EQ(Array<float>(request.reduced().log_envelopes()), envelopes);
  EXPECT_EQ(Array<float>(request.reduced().covered_masses()), masses);
}

TEST_F(ClientTest, EvaluateSendsItsOptions) {
  const std::vector<float> log_probs = {-1, -2, -3, -4}, sampled = {-5, -6};
  const std::vector<float> own = {-0.5f, -0.25f}, current = {-1.5f, -2.5f}, advantages = {3, 4};
  const std::vector<uint8_t> mask = {1, 0};
  const std::vector<int32_t> ids = {0x64636261, 9};
  const std::vector<Slice> slices = {{{"a"}, 3, 2}};
  v1::Algorithm gspo;
  gspo.mutable_gspo()->set_epsilon_low(0.5f);
  v1::EvaluateResponse answer;
  answer.set_surrogates(Bytes<float>({1, 2}));
  answer.set_coefficients(Bytes<float>({3, 4}));
  v1::LogRatioSum& sum = *answer.add_log_ratio_sums();
  sum.set_log_ratio(-7);
  sum.set_positions(1);
  service_.AnswerEvaluate(answer);
  EvaluateOptions options{.draw = 3,
                          .outputs = {v1::SURROGATES, v1::COEFFICIENTS},
                          .weight = v1::EXPECTED,
                          .mask = mask,
                          .own_log_probs = own,
                          .decoupled_log_probs = current,
                          .algorithm = gspo,
                          .advantages = advantages,
                          .sampled_ids = ids,
                          .log_ratio_sums = {{5, 6}}};
  const auto evaluation =
      client_->Evaluate({"run"}, slices, GatheredValues{log_probs, sampled}, options);
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  EXPECT_THAT(evaluation->surrogates, ElementsAre(1, 2));
  EXPECT_THAT(evaluation->coefficients, ElementsAre(3, 4));
  EXPECT_THAT(evaluation->log_ratio_sums, ElementsAre(LogRatioSum{-7, 1}));
  const v1::EvaluateRequest request = service_.evaluate_request();
  EXPECT_EQ(Array<float>(request.gathered().log_probs()), log_probs);
  EXPECT_EQ(Array<float>(request.gathered().sampled_log_probs()), sampled);
  EXPECT_EQ(request.weight(), v1::EXPECTED);
  EXPECT_EQ(request.mask(), std::string("\x01\x00", 2));
  EXPECT_EQ(Array<float>(request.own_log_probs()), own);
  EXPECT_EQ(Array<float>(request.decoupled().current_log_probs()), current);
  EXPECT_EQ(request.algorithm().gspo().epsilon_low(), 0.5f);
  EXPECT_EQ(Array<float>(request.advantages()), advantages);
  EXPECT_EQ(request.sampled_ids(), std::string("abcd\t\0\0\0", 8));
  EXPECT_EQ(request.slices(0).sequence_log_ratio_sum().log_ratio(), 5);
  EXPECT_EQ(request.slices(0).sequence_log_ratio_sum().positions(), 6u);

  options.log_ratio_sums.clear();
  options.sampled_ids = std::span(ids).first(1);
  EXPECT_EQ(
      client_->Evaluate({"run"}, slices, GatheredValues{log_probs, sampled}, options).status(),
      absl::InvalidArgumentError("sampled_ids: 1 elements, must be 2"));
}

TEST_F(ClientTest, ALostSequenceIsLeftOutOfEvaluateAndTheOthersAreDecided) {
  v1::FetchTopKResponse header = FetchHeader({0, 2, 0, 1}, 1);
  service_.AnswerFetch({header, FetchChunk(1, 10, 2, 1), FetchChunk(3, 10, 1, 1)});
  const std::vector<Slice> asked(4, Slice{{"a"}});
  const auto records = client_->FetchTopK({"run"}, asked);
  ASSERT_TRUE(records.ok()) << records.status();

  v1::EvaluateResponse answer;
  answer.set_decisions("\x01\x02\x04");
  answer.add_slice_totals()->set_accepted(1);
  answer.add_slice_totals()->set_missing(1);
  v1::MissingRange& missing = *answer.add_missing();
  missing.set_slice(1);
  missing.set_first_position(10);
  missing.set_length(1);
  for (const int64_t sum : {5, 7}) answer.add_log_ratio_sums()->set_log_ratio(sum);
  service_.AnswerEvaluate(answer);
  const std::vector<float> values = {-1, -2, -3};
  v1::Algorithm gspo;
  gspo.mutable_gspo();
  const EvaluateOptions options{.outputs = {v1::DECISIONS},
                                .algorithm = gspo,
                                .log_ratio_sums = {{0, 0}, {1, 2}, {0, 0}, {3, 1}}};
  const auto evaluation =
      client_->Evaluate({"run"}, records->slices, GatheredValues{values, values}, options);
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  const v1::EvaluateRequest request = service_.evaluate_request();
  ASSERT_EQ(request.slices_size(), 2);
  EXPECT_EQ(request.slices(0).length(), 2);
  EXPECT_EQ(request.slices(1).length(), 1);
  EXPECT_EQ(request.slices(1).sequence_log_ratio_sum().log_ratio(), 3);
  EXPECT_EQ(evaluation->decisions.size(), 3);
  ASSERT_EQ(evaluation->slice_totals.size(), 4);
  EXPECT_EQ(evaluation->slice_totals[1].accepted(), 1);
  EXPECT_EQ(evaluation->slice_totals[2].ByteSizeLong(), 0);
  EXPECT_EQ(evaluation->slice_totals[3].missing(), 1);
  EXPECT_THAT(evaluation->log_ratio_sums, ElementsAre(LogRatioSum{0, 0}, LogRatioSum{5, 0},
                                                      LogRatioSum{0, 0}, LogRatioSum{7, 0}));
  ASSERT_EQ(evaluation->missing.size(), 1);
  EXPECT_EQ(evaluation->missing[0].slice(), 3);
}

TEST_F(ClientTest, ABatchOfWhichNothingIsLeftIsDecidedWithoutTheServer) {
  const std::vector<Slice> slices(2, Slice{{"a"}});
  const auto evaluation = client_->Evaluate({"run"}, slices, GatheredValues{}, {});
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  EXPECT_EQ(evaluation->slice_totals.size(), 2);
  EXPECT_EQ(evaluation->totals.ByteSizeLong(), 0);
  EXPECT_FALSE(service_.evaluate_request().has_run()) << "nothing was asked";
  // Rows that belong to no slice are the server's to refuse, as is a batch without slices.
  const std::vector<float> values = {-1};
  EXPECT_TRUE(client_->Evaluate({"run"}, slices, GatheredValues{values, values}, {}).ok());
  EXPECT_EQ(service_.evaluate_request().slices_size(), 0);
  EXPECT_TRUE(service_.evaluate_request().has_run()) << "the scripted server, which answers";
}

TEST_F(ClientTest, EvaluateRefusesArraysOfTheWrongLength) {
  const std::vector<float> values = {-1, -2};
  const std::vector<Slice> slices = {{{"a"}, 0, 2}};
  v1::EvaluateResponse answer;
  answer.set_ratios(Bytes<float>({1}));
  service_.AnswerEvaluate(answer);
  const auto evaluation = client_->Evaluate({"run"}, slices, ReducedValues{values, values, values},
                                            {.outputs = {v1::RATIOS}});
  EXPECT_EQ(evaluation.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(evaluation.status().message()), HasSubstr("ratios holds 4 bytes, not 8"));
}

TEST_F(ClientTest, StatusesKeepCodeAndMessage) {
  EXPECT_EQ(client_->GetRun("x").status(), absl::NotFoundError("no run x"));
}

TEST(ConnectTest, SaysThatNoServerAnswers) {
  const auto client = Client::Connect("127.0.0.1:1", {.connect_timeout = absl::Milliseconds(200)});
  EXPECT_EQ(client.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(client.status().message()), HasSubstr("127.0.0.1:1"));
}

}  // namespace
}  // namespace sis
