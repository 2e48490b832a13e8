// The C++ client's ragged records and values: the padded ones without unused slots, and the same
// decisions, whole, cut up, and of several servers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/api/client.h"
#include "client/api/gather.h"
#include "server/testing/live_server.h"
#include "server/testing/record_generator.h"
#include "tests/integration/same_records.h"

namespace sis {
namespace {

constexpr uint32_t kLengths[] = {192, 100, 1, 64, 70, 33};
const RunRef kRun{"run"};

ServerOptions WithAnyTopK(ServerOptions options) {
  options.limits.max_top_k = kMaxTopK;
  return options;
}

// Of K slots.
class ClientRaggedTest : public testing::TestWithParam<int> {
 protected:
  ClientRaggedTest() : live_(WithAnyTopK(LiveServer::Options())) {
    for (const uint32_t length : kLengths) {
      slices_.push_back({{absl::StrCat("s", slices_.size())}, 0, length});
      records_.push_back(generator_.NextRecords(length));
    }
    slices_.push_back({{"never"}, 0, 9});
    client_ = *Client::Connect(live_.grpc_address());
    Fill(*client_);
    padded_ = *client_->FetchTopK(kRun, slices_);
    // What the current policy says of all tokens.
    std::mt19937 random(3);
    std::normal_distribution<float> logit;
    for (size_t i = 0; i < padded_.positions(); ++i) {
      double sum = 0;
      const size_t first = log_softmax_.size();
      for (int id = 0; id < vocabulary_; ++id) {
        log_softmax_.push_back(logit(random));
        sum += std::exp(log_softmax_.back());
      }
      for (size_t id = first; id < log_softmax_.size(); ++id) {
        log_softmax_[id] -= static_cast<float>(std::log(sum));
      }
    }
  }

  void Fill(Client& client) {
    v1::RunConfig config = LiveServer::RunRequest("run", slots_, vocabulary_).config();
    config.set_mass(0.8);
    EXPECT_TRUE(client.CreateRun(kRun.run_id, config).ok());
    v1::Sampling sampling;
    sampling.set_log_probs(v1::Sampling::RAW);
    sampling.set_temperature(1);
    const auto stream = client.Append(kRun, sampling, vocabulary_);
    for (size_t i = 0; i < records_.size(); ++i) {
      EXPECT_TRUE(stream->Block(slices_[i].sequence, 0, 0, records_[i].View()).ok());
    }
    EXPECT_TRUE(stream->Finish()->empty());
  }
  // Without unused slots.
  template <typename T>
  std::vector<T> Used(std::span<const T> rows, std::span<const uint16_t> counts) const {
    std::vector<T> used;
    for (size_t i = 0; i < counts.size() && !rows.empty(); ++i) {
      const auto row = rows.subspan(i * slots_, counts[i]);
      used.insert(used.end(), row.begin(), row.end());
    }
    return used;
  }
  void ExpectRagged(const TopKRecords& got) const {
    ASSERT_EQ(got.top_k_counts.size(), padded_.positions());
    for (size_t i = 0; i < got.top_k_counts.size(); ++i) {
      const auto row = padded_.ids.subspan(i * slots_, slots_);
      ASSERT_EQ(got.top_k_counts[i], std::ranges::find(row, -1) - row.begin()) << i;
    }
    TopKRecords expected = padded_;
    const std::vector<int32_t> ids = Used(padded_.ids, got.top_k_counts);
    const std::vector<float> log_probs = Used(padded_.log_probs, got.top_k_counts);
    expected.ids = ids;
    expected.log_probs = log_probs;
    ExpectSameRecords(got, expected);
  }
  static void ExpectSame(const Evaluation& got, const Evaluation& expected) {
    EXPECT_EQ(got.accept_bits, expected.accept_bits);
    EXPECT_EQ(got.decisions, expected.decisions);
    EXPECT_EQ(got.acceptance_probabilities, expected.acceptance_probabilities);
    EXPECT_EQ(got.totals.SerializeAsString(), expected.totals.SerializeAsString());
    ASSERT_EQ(got.missing.size(), expected.missing.size());
  }
  const EvaluateOptions options_ = {
      .draw = 3, .outputs = {v1::ACCEPT_BITS, v1::DECISIONS, v1::ACCEPTANCE_PROBABILITIES}};

  LiveServer live_;
  const int slots_ = GetParam();
  const int vocabulary_ = slots_ + 90;
  RecordGenerator generator_{slots_, vocabulary_, 11};
  std::vector<Slice> slices_;
  std::vector<Records> records_;
  std::unique_ptr<Client> client_;
  TopKRecords padded_;
  std::vector<float> log_softmax_;
};

TEST_P(ClientRaggedTest, RecordsAreThePaddedOnesWithoutUnusedSlots) {
  const auto got = client_->FetchTopK(kRun, slices_, {.ragged = true});
  ASSERT_TRUE(got.ok()) << got.status();
  ExpectRagged(*got);
  EXPECT_THAT(got->top_k_counts, testing::Contains(0));
  EXPECT_LT(got->ids.size(), padded_.ids.size() * 0.9);
  const auto some = client_->FetchTopK(kRun, slices_, {.arrays = {v1::TOP_K_IDS}, .ragged = true});
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_EQ(BytesOf(some->ids), BytesOf(got->ids));
  EXPECT_EQ(BytesOf(some->top_k_counts), BytesOf(got->top_k_counts));
  EXPECT_TRUE(some->log_probs.empty());
  const auto none =
      client_->FetchTopK(kRun, slices_, {.arrays = {v1::SAMPLED_IDS}, .ragged = true});
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_TRUE(none->top_k_counts.empty());
}

TEST_P(ClientRaggedTest, DecisionsAreTheSameHoweverTheyAreSent) {
  const auto rows = Gather(padded_, log_softmax_);
  ASSERT_TRUE(rows.ok()) << rows.status();
  const auto expected = client_->Evaluate(kRun, padded_.slices, rows->values(), options_);
  ASSERT_TRUE(expected.ok()) << expected.status();
  EXPECT_GT(expected->totals.accepted(), 0);
  EXPECT_EQ(expected->totals.missing(), 9);
  const TopKRecords ragged = *client_->FetchTopK(kRun, slices_, {.ragged = true});
  const auto gathered = Gather(ragged, log_softmax_);
  ASSERT_TRUE(gathered.ok()) << gathered.status();
  EXPECT_EQ(gathered->log_probs, Used<float>(rows->log_probs, ragged.top_k_counts));

  for (const size_t bytes : {1, 1000, 1 << 20}) {
    const auto client = *Client::Connect(live_.grpc_address(), {.micro_batch_bytes = bytes});
    const auto cut_up = client->Evaluate(kRun, padded_.slices, gathered->values(), options_);
    ASSERT_TRUE(cut_up.ok()) << cut_up.status();
    ExpectSame(*cut_up, *expected);
  }
}

TEST_P(ClientRaggedTest, OfSeveralServersToo) {
  LiveServer servers[] = {LiveServer(WithAnyTopK(LiveServer::Options())),
                          LiveServer(WithAnyTopK(LiveServer::Options()))};
  const auto client = *Client::Connect(
      std::vector<std::string>{servers[0].grpc_address(), servers[1].grpc_address()});
  Fill(*client);
  const auto ragged = client->FetchTopK(kRun, slices_, {.ragged = true});
  ASSERT_TRUE(ragged.ok()) << ragged.status();
  ExpectRagged(*ragged);
  const auto gathered = Gather(*ragged, log_softmax_);
  ASSERT_TRUE(gathered.ok()) << gathered.status();
  const auto got = client->Evaluate(kRun, ragged->slices, gathered->values(), options_);
  ASSERT_TRUE(got.ok()) << got.status();
  const auto rows = Gather(padded_, log_softmax_);
  ExpectSame(*got, *client_->Evaluate(kRun, padded_.slices, rows->values(), options_));
}

TEST_P(ClientRaggedTest, WhatDoesNotFitIsRefused) {
  const TopKRecords ragged = *client_->FetchTopK(kRun, slices_, {.ragged = true});
  auto gathered = *Gather(ragged, log_softmax_);
  const auto code = [&] {
    return client_->Evaluate(kRun, ragged.slices, gathered.values(), options_).status().code();
  };
  gathered.log_probs.pop_back();
  EXPECT_EQ(code(), absl::StatusCode::kInvalidArgument);
  gathered.log_probs.push_back(-1);
  std::rotate(gathered.top_k_counts.begin(), gathered.top_k_counts.begin() + 1,
              gathered.top_k_counts.end());
  EXPECT_EQ(code(), absl::StatusCode::kFailedPrecondition);
  gathered.top_k_counts.pop_back();
  EXPECT_EQ(code(), absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(TopK, ClientRaggedTest, testing::Values(10, 300, kMaxTopK));

}  // namespace
}  // namespace sis
