// Decisions are a pure function of their inputs and the stored record: a retry, another batching,
// another server with the same records give the same bytes; wherever the arrays are.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/integration/connection.h"
#include "tests/integration/random_policies.h"

namespace sis {
namespace {

constexpr int kVocabulary = 64;
constexpr int kTopK = 10;
constexpr int kSequences = 8;
constexpr int kLength = 150;

struct Recorded {
  std::string id;
  std::vector<int32_t> sampled_ids, ids;
  std::vector<float> sampled, log_probs, current_sampled, gathered;
};

std::vector<Recorded> Record(uint32_t seed) {
  RandomPolicies policies(seed, kVocabulary, kTopK);
  std::vector<Recorded> sequences;
  for (int s = 0; s < kSequences; ++s) {
    Recorded& sequence = sequences.emplace_back();
    sequence.id = absl::StrCat("sequence-", s);
    for (int t = 0; t < kLength; ++t) {
      const PolicyPair pair = policies.Next(/*drift=*/0.4);
      const int32_t token = policies.Sample(pair.behavior);
      sequence.sampled_ids.push_back(token);
      sequence.sampled.push_back(pair.behavior[token]);
      sequence.current_sampled.push_back(pair.current[token]);
      sequence.ids.insert(sequence.ids.end(), pair.ids.begin(), pair.ids.end());
      sequence.log_probs.insert(sequence.log_probs.end(), pair.log_probs.begin(),
                                pair.log_probs.end());
      sequence.gathered.insert(sequence.gathered.end(), pair.gathered.begin(), pair.gathered.end());
    }
  }
  return sequences;
}

template <typename T>
std::string RowBytes(const std::vector<T>& array, int first, int count, int width) {
  return Bytes(
      std::vector<T>(array.begin() + first * width, array.begin() + (first + count) * width));
}

void AppendAll(Connection& connection, const std::vector<Recorded>& sequences, int block_length) {
  connection.live().CreateRun(LiveServer::RunRequest("run", kTopK, kVocabulary, /*seed=*/77));
  std::vector<v1::AppendRequest> requests{LiveServer::Header("run", kVocabulary)};
  for (int first = 0; first < kLength; first += block_length) {
    v1::AppendBatch& batch = *requests.emplace_back().mutable_batch();
    const int count = std::min(block_length, kLength - first);
    for (const Recorded& sequence : sequences) {
      v1::Block& block = *batch.add_entries()->mutable_block();
      block.mutable_sequence()->set_id(sequence.id);
      block.set_first_position(first);
      block.set_sampled_ids(RowBytes(sequence.sampled_ids, first, count, 1));
      block.set_sampled_log_probs(RowBytes(sequence.sampled, first, count, 1));
      block.set_top_k_ids(RowBytes(sequence.ids, first, count, kTopK));
      block.set_top_k_log_probs(RowBytes(sequence.log_probs, first, count, kTopK));
    }
  }
  const LiveServer::Appended appended = connection.Append(requests);
  ASSERT_TRUE(appended.status.ok()) << appended.status.error_message();
  for (const v1::Ack& ack : appended.acks) ASSERT_EQ(ack.code(), 0) << ack.message();
}

// The log-ratios of every sequence, evaluated in slices of this length, so many slices a call.
std::vector<float> LogRatios(Connection& connection, const std::vector<Recorded>& sequences,
                             int slice_length, int slices_per_call, uint64_t draw) {
  struct Part {
    const Recorded* sequence;
    int first, count;
  };
  std::vector<Part> parts;
  for (const Recorded& sequence : sequences) {
    for (int first = 0; first < kLength; first += slice_length) {
      parts.push_back({&sequence, first, std::min(slice_length, kLength - first)});
    }
  }
  std::vector<float> log_ratios;
  for (size_t next = 0; next < parts.size(); next += slices_per_call) {
    v1::EvaluateRequest request;
    request.mutable_run()->set_run_id("run");
    request.set_draw(draw);
    request.add_outputs(v1::LOG_RATIOS);
    for (size_t i = next; i < std::min(parts.size(), next + slices_per_call); ++i) {
      const auto& [sequence, first, count] = parts[i];
      v1::Slice& slice = *request.add_slices();
      slice.mutable_sequence()->set_id(sequence->id);
      slice.set_first_position(first);
      slice.set_length(count);
      request.mutable_gathered()->mutable_log_probs()->append(
          RowBytes(sequence->gathered, first, count, kTopK));
      request.mutable_gathered()->mutable_sampled_log_probs()->append(
          RowBytes(sequence->current_sampled, first, count, 1));
    }
    v1::EvaluateResponse response;
    const grpc::Status status = connection.Evaluate(request, response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    const auto part = Values<float>(response.log_ratios());
    log_ratios.insert(log_ratios.end(), part.begin(), part.end());
  }
  return log_ratios;
}

TEST(Determinism, RetryBatchingAndRestartGiveTheSameBytes) {
  const std::vector<Recorded> sequences = Record(/*seed=*/5);
  std::vector<float> expected;
  {
    Connection connection;
    AppendAll(connection, sequences, /*block_length=*/kLength);
    expected = LogRatios(connection, sequences, kLength, kSequences, /*draw=*/3);
    ASSERT_EQ(expected.size(), size_t{kSequences * kLength});
    EXPECT_EQ(Bytes(LogRatios(connection, sequences, kLength, kSequences, 3)), Bytes(expected))
        << "retry";
    EXPECT_EQ(Bytes(LogRatios(connection, sequences, 7, 5, 3)), Bytes(expected)) << "batching";
    EXPECT_NE(Bytes(LogRatios(connection, sequences, kLength, kSequences, 4)), Bytes(expected))
        << "another draw must differ";
  }
  Connection restarted;
  AppendAll(restarted, sequences, /*block_length=*/1);
  EXPECT_EQ(Bytes(LogRatios(restarted, sequences, 11, 3, 3)), Bytes(expected)) << "restart";
}

TEST(Determinism, EachPositionCountsOnceHoweverOftenItIsAsked) {
  const std::vector<Recorded> sequences = Record(/*seed=*/6);
  Connection connection;
  AppendAll(connection, sequences, kLength);
  for (const auto& [length, per_call] : {std::pair{40, 1}, {7, 4}, {kLength, kSequences}}) {
    LogRatios(connection, sequences, length, per_call, /*draw=*/9);
    grpc::ClientContext context;
    v1::GetStepRequest request;
    request.mutable_run()->set_run_id("run");
    request.set_draw(9);
    v1::GetStepResponse response;
    const grpc::Status status = connection.live().stub().GetStep(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    const v1::Totals& totals = response.totals();
    EXPECT_EQ(totals.accepted() + totals.rejected() + totals.outside_top_k() + totals.missing(),
              uint64_t{kSequences * kLength});
    EXPECT_EQ(response.sequences(), uint64_t{kSequences});
  }
}

}  // namespace
}  // namespace sis
