// EvaluateStream gives what Evaluate gives, however a batch is cut, to plain protobuf clients;
// their arrays in messages or in shared memory.
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/integration/connection.h"
#include "tests/integration/recorded_sequences.h"

namespace sis {
namespace {

class EvaluateStreamTest : public testing::TestWithParam<ArraysIn> {
 protected:
  static v1::EvaluateRequest Options(const std::string& run) {
    v1::EvaluateRequest request;
    request.mutable_run()->set_run_id(run);
    request.set_draw(3);
    request.add_outputs(v1::ACCEPT_BITS);
    request.add_outputs(v1::DECISIONS);
    request.add_outputs(v1::ACCEPTANCE_PROBABILITIES);
    return request;
  }

  // Adds positions [first, first + count) of a sequence.
  static void Add(const NamedSequence& sequence, uint32_t first, uint32_t count,
                  v1::EvaluateRequest& request) {
    v1::Slice& slice = *request.add_slices();
    slice.mutable_sequence()->set_id(sequence.id);
    slice.set_first_position(first);
    slice.set_length(count);
    const v1::Gathered part = sequence.current.Gathered(first, count);
    request.mutable_gathered()->mutable_log_probs()->append(part.log_probs());
    request.mutable_gathered()->mutable_sampled_log_probs()->append(part.sampled_log_probs());
  }

  v1::EvaluateRequest Whole(const std::string& run) {
    v1::EvaluateRequest request = Options(run);
    for (const NamedSequence& sequence : sequences_) {
      Add(sequence, 0, sequence.records.size(), request);
    }
    return request;
  }

  Connection connection_{GetParam()};
  const std::vector<NamedSequence> sequences_ = SequencesOfSeveralLengths();
};

INSTANTIATE_TEST_SUITE_P(, EvaluateStreamTest, EitherWay(), NameOfWay);

TEST_P(EvaluateStreamTest, IsEvaluateBitByBitHoweverTheBatchIsCut) {
  MakeRun(connection_, "unary", sequences_);
  v1::EvaluateResponse whole;
  ASSERT_TRUE(connection_.Evaluate(Whole("unary"), whole).ok());
  ASSERT_GT(whole.totals().accepted(), 0);
  ASSERT_GT(whole.totals().missing(), 0);
  for (const uint32_t longest : {1000, 100, 37, 5}) {
    const std::string run = absl::StrCat("stream", longest);
    MakeRun(connection_, run, sequences_);
    std::vector<v1::EvaluateRequest> requests;
    for (const NamedSequence& sequence : sequences_) {
      const uint32_t length = sequence.records.size();
      for (uint32_t first = 0; first < length; first += longest) {
        // Two slices a request, now and then.
        if (requests.empty() || requests.size() % 3 == 0 || requests.back().slices_size() == 2) {
          requests.push_back(Options(run));
        }
        Add(sequence, first, std::min(longest, length - first), requests.back());
      }
    }
    std::vector<v1::EvaluateResponse> responses;
    const grpc::Status status = connection_.EvaluateStream(requests, responses);
    EXPECT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(responses.size(), requests.size());
    std::string decisions;
    std::string probabilities;
    uint64_t counted = 0;
    uint64_t missing = 0;
    for (const v1::EvaluateResponse& response : responses) {
      decisions += response.decisions();
      probabilities += response.acceptance_probabilities();
      counted += response.newly_counted();
      for (const v1::MissingRange& range : response.missing()) missing += range.length();
    }
    EXPECT_EQ(decisions, whole.decisions());
    EXPECT_EQ(probabilities, whole.acceptance_probabilities());
    EXPECT_EQ(counted, whole.newly_counted());
    EXPECT_EQ(missing, whole.totals().missing());
  }
}

TEST_P(EvaluateStreamTest, ARefusedRequestEndsTheStreamAfterTheAnswersBeforeIt) {
  MakeRun(connection_, "run", sequences_);
  v1::EvaluateRequest good = Options("run");
  Add(sequences_[0], 0, 10, good);
  v1::EvaluateRequest bad = good;
  bad.mutable_gathered()->mutable_log_probs()->pop_back();
  for (const size_t before : {0, 1, 5}) {
    std::vector<v1::EvaluateRequest> requests(before, good);
    requests.push_back(bad);
    requests.resize(before + 6, good);
    std::vector<v1::EvaluateResponse> responses;
    const grpc::Status status = connection_.EvaluateStream(requests, responses);
    EXPECT_EQ(responses.size(), before);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_NE(status.error_message().find("gathered.log_probs"), std::string::npos);
  }
}

TEST_P(EvaluateStreamTest, AnEmptyStreamIsNoError) {
  std::vector<v1::EvaluateResponse> responses;
  const grpc::Status status = connection_.EvaluateStream({}, responses);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(responses.empty());
}

TEST_P(EvaluateStreamTest, CancelledStreamsLeaveNothingBehindThatWorks) {
  MakeRun(connection_, "run", sequences_);
  for (int round = 0; round < 20; ++round) {
    grpc::ClientContext context;
    const auto stream = connection_.live().stub().EvaluateStream(&context);
    for (int i = 0; i < round % 5; ++i) {
      if (!stream->Write(Whole("run"))) break;
    }
    context.TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  v1::EvaluateResponse whole;
  EXPECT_TRUE(connection_.Evaluate(Whole("run"), whole).ok());
}

TEST_P(EvaluateStreamTest, AStreamLeftOpenEndsAtItsDeadline) {
  MakeRun(connection_, "run", sequences_);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
  const auto stream = connection_.live().stub().EvaluateStream(&context);
  v1::EvaluateResponse response;
  while (stream->Read(&response)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(connection_.Evaluate(Whole("run"), response).ok());
}

TEST_P(EvaluateStreamTest, BytesThatAreNoRequestAreRefused) {
  grpc::GenericStub stub(
      grpc::CreateChannel(connection_.live().grpc_address(), grpc::InsecureChannelCredentials()));
  const grpc::Slice slice(std::string("\x32\x7f not a Gathered"));
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  grpc::ClientContext context;
  std::promise<grpc::Status> ended;
  stub.UnaryCall(&context, "/sis.v1.RatioService/Evaluate", {}, &request, &response,
                 [&](grpc::Status status) { ended.set_value(std::move(status)); });
  const grpc::Status status = ended.get_future().get();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "not a sis.v1.EvaluateRequest in protobuf");
}

}  // namespace
}  // namespace sis
