// Errors of calls that are found before their arrays are read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/testing/live_server.h"

namespace sis {
namespace {

using ::testing::HasSubstr;

constexpr int kTopK = 3;
constexpr int kVocabulary = 10;

class BadCallsTest : public testing::Test {
 protected:
  void SetUp() override { live_.CreateRun(LiveServer::RunRequest("run", kTopK, kVocabulary)); }

  LiveServer live_;
};

TEST_F(BadCallsTest, AStreamBeginsWithOneHeader) {
  const v1::AppendRequest header = LiveServer::Header("run", kVocabulary);
  v1::AppendRequest batch;
  batch.mutable_batch()->add_entries()->mutable_sequence()->set_id("early");
  const std::pair<std::vector<v1::AppendRequest>, const char*> cases[] = {
      {{batch}, "must come first"},
      {{v1::AppendRequest()}, "neither header nor batch"},
      {{header, header}, "sent twice"},
  };
  for (const auto& [requests, message] : cases) {
    const grpc::Status status = live_.Append(requests).status;
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT) << message;
    EXPECT_THAT(status.error_message(), HasSubstr(message));
  }
}

TEST_F(BadCallsTest, ReleaseNamesTheWrongField) {
  v1::ReleaseRequest request;
  request.add_sequences()->set_id("");
  request.mutable_run()->set_run_id("run");
  grpc::ClientContext context;
  v1::ReleaseResponse response;
  const grpc::Status status = live_.stub().Release(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("sequence.id"));
}

}  // namespace
}  // namespace sis
