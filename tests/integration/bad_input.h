// A server with one good record, for tests of bad input: each case gets the right code, a message
// that names what is wrong, and changes nothing; and the server goes on.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/integration/connection.h"

namespace sis {

inline constexpr int kTopK = 3;
inline constexpr int kVocabulary = 10;
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Two valid positions.
inline v1::Block GoodBlock(const std::string& id, uint32_t first_position = 0) {
  v1::Block block;
  block.mutable_sequence()->set_id(id);
  block.set_first_position(first_position);
  block.set_sampled_ids(Bytes<int32_t>({4, 9}));
  block.set_sampled_log_probs(Bytes<float>({-0.5f, -3.0f}));
  block.set_top_k_ids(Bytes<int32_t>({4, 2, 7, 1, 3, -1}));
  block.set_top_k_log_probs(Bytes<float>({-0.5f, -1.5f, -2.5f, -0.25f, -2.0f, -kInfinity}));
  return block;
}

template <typename T>
void Set(std::string* bytes, size_t index, T value) {
  std::memcpy(bytes->data() + index * sizeof(T), &value, sizeof(T));
}

class BadInputTest : public testing::Test {
 protected:
  void SetUp() override {
    connection_.CreateRun(LiveServer::RunRequest("run", kTopK, kVocabulary));
    const LiveServer::Appended appended = AppendBlock(GoodBlock("good"));
    ASSERT_TRUE(appended.status.ok()) << appended.status.error_message();
    ASSERT_EQ(appended.acks.at(0).code(), 0) << appended.acks.at(0).message();
    ASSERT_EQ(appended.acks.at(0).committed_length(), 2u);
    before_ = State();
  }

  // Nothing has changed, and the server still answers.
  void TearDown() override {
    EXPECT_EQ(State(), before_);
    v1::EvaluateResponse response;
    const grpc::Status status = connection_.Evaluate(GoodEvaluate(), response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.totals().accepted() + response.totals().rejected(), 1u);
    EXPECT_EQ(response.totals().outside_top_k(), 1u);
  }

  LiveServer::Appended AppendBlock(const v1::Block& block) {
    v1::AppendRequest request;
    *request.mutable_batch()->add_entries()->mutable_block() = block;
    return connection_.Append({LiveServer::Header("run", kVocabulary), request});
  }

  v1::EvaluateRequest GoodEvaluate() {
    v1::EvaluateRequest request;
    request.mutable_run()->set_run_id("run");
    v1::Slice& slice = *request.add_slices();
    slice.mutable_sequence()->set_id("good");
    slice.set_length(2);
    request.mutable_gathered()->set_log_probs(
        Bytes<float>({-0.6f, -1.4f, -2.5f, -0.25f, -2.0f, kNan}));
    request.mutable_gathered()->set_sampled_log_probs(Bytes<float>({-0.6f, -3.0f}));
    return request;
  }

  v1::EvaluateRequest GoodReduced() {
    v1::EvaluateRequest request = GoodEvaluate();
    request.mutable_reduced()->set_sampled_log_probs(Bytes<float>({-0.6f, -3.0f}));
    request.mutable_reduced()->set_log_envelopes(Bytes<float>({0.1f, 0.0f}));
    request.mutable_reduced()->set_covered_masses(Bytes<float>({0.9f, 0.9f}));
    return request;
  }

  // Everything that a client can see of the runs, and the digest of the record.
  std::string State() {
    std::string state;
    grpc::ClientContext context;
    v1::FetchTopKRequest request;
    request.mutable_run()->set_run_id("run");
    request.add_slices()->mutable_sequence()->set_id("good");
    auto reader = connection_.live().stub().FetchTopK(&context, request);
    v1::FetchTopKResponse response;
    while (reader->Read(&response)) state += response.DebugString();
    EXPECT_TRUE(reader->Finish().ok());
    // After the fetch, so that the sequence has been read in all states.
    grpc::ClientContext runs_context;
    v1::ListRunsResponse runs;
    EXPECT_TRUE(connection_.live().stub().ListRuns(&runs_context, {}, &runs).ok());
    // These speak of what was refused.
    runs.clear_worth_a_look();
    runs.clear_broken();
    for (v1::Run& run : *runs.mutable_runs()) {
      run.clear_verdict();
      run.clear_findings();
    }
    return state + runs.DebugString();
  }

  // The block is refused with this code; the message names the sequence and each of the parts.
  void ExpectRefused(const v1::Block& block, grpc::StatusCode code,
                     const std::vector<std::string>& parts) {
    const LiveServer::Appended appended = AppendBlock(block);
    ASSERT_TRUE(appended.status.ok()) << "one bad block must not end the stream";
    ASSERT_EQ(appended.acks.size(), 1u);
    EXPECT_EQ(appended.acks[0].code(), code) << appended.acks[0].message();
    for (const std::string& part : parts)
      EXPECT_THAT(appended.acks[0].message(), testing::HasSubstr(part));
  }

  void ExpectInvalid(const std::function<void(v1::Block&)>& spoil,
                     const std::vector<std::string>& parts) {
    for (const char* id : {"bad", "good"}) {  // a new sequence, and one with records
      v1::Block block = GoodBlock(id, std::string(id) == "good" ? 2 : 0);
      spoil(block);
      ExpectRefused(block, grpc::INVALID_ARGUMENT, parts);
    }
  }

  void ExpectInvalid(const v1::EvaluateRequest& request, const std::vector<std::string>& parts) {
    ExpectStatus(request, grpc::INVALID_ARGUMENT, parts);
  }
  void ExpectStatus(const v1::EvaluateRequest& request, grpc::StatusCode code,
                    const std::vector<std::string>& parts) {
    v1::EvaluateResponse response;
    const grpc::Status status = connection_.Evaluate(request, response);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    for (const std::string& part : parts)
      EXPECT_THAT(status.error_message(), testing::HasSubstr(part));
  }

  void ExpectStreamEnds(const v1::AppendRequest& first, grpc::StatusCode code,
                        const std::string& part) {
    const LiveServer::Appended appended = connection_.Append({first});
    EXPECT_EQ(appended.status.error_code(), code);
    EXPECT_THAT(appended.status.error_message(), testing::HasSubstr(part));
  }

  Connection connection_;
  std::string before_;
};

}  // namespace sis
