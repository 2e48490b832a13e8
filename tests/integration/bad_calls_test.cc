// Bad input of the calls without arrays.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/integration/bad_input.h"

namespace sis {
namespace {

using ::testing::HasSubstr;

TEST_F(BadInputTest, CreateRun) {
  const auto expect = [&](const std::function<void(v1::CreateRunRequest&)>& spoil,
                          grpc::StatusCode code, const std::string& part) {
    v1::CreateRunRequest request = LiveServer::RunRequest("new", kTopK, kVocabulary);
    spoil(request);
    grpc::ClientContext context;
    v1::CreateRunResponse response;
    const grpc::Status status = connection_.live().stub().CreateRun(&context, request, &response);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(part));
  };
  using R = v1::CreateRunRequest;
  const auto invalid = grpc::INVALID_ARGUMENT;
  expect([](R& r) { r.set_run_id(""); }, invalid, "run_id");
  expect([](R& r) { r.set_run_id("a b"); }, invalid, "run_id 'a b'");
  expect([](R& r) { r.set_run_id(std::string(257, 'x')); }, invalid, "257 bytes");
  expect([](R& r) { r.mutable_config()->set_top_k(0); }, invalid, "config.top_k 0");
  expect([](R& r) { r.mutable_config()->set_top_k(129); }, invalid, "config.top_k 129");
  expect([](R& r) { r.mutable_config()->set_vocabulary_size(0); }, invalid, "vocabulary_size 0");
  expect([](R& r) { r.mutable_config()->set_vocabulary_size(1 << 25); }, invalid,
         "vocabulary_size 33554432");
  expect([](R& r) { r.mutable_config()->set_time_to_live_seconds(-1); }, invalid,
         "time_to_live_seconds -1");
  expect([](R& r) { r.mutable_config()->set_time_to_live_seconds(std::nan("")); }, invalid,
         "time_to_live_seconds nan");
  expect([](R& r) { r.mutable_config()->set_model(std::string(300, 'x')); }, invalid,
         "config.model");
  expect([](R& r) { r.clear_config(); }, invalid, "config.vocabulary_size 0");
  expect(
      [](R& r) {
        r.set_run_id("run");
        r.mutable_config()->set_seed(2);
      },
      grpc::ALREADY_EXISTS, "seed");
}

TEST_F(BadInputTest, OtherCalls) {
  {
    grpc::ClientContext context;
    v1::FetchTopKRequest request;
    request.mutable_run()->set_run_id("run");
    request.set_lease_seconds(-1);
    request.add_slices()->mutable_sequence()->set_id("good");
    const grpc::Status status = connection_.live().stub().FetchTopK(&context, request)->Finish();
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("lease_seconds: -1"));
  }
  {
    grpc::ClientContext context;
    v1::FetchTopKRequest request;
    request.mutable_run()->set_run_id("run");
    const grpc::Status status = connection_.live().stub().FetchTopK(&context, request)->Finish();
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("slices: none"));
  }
  {
    grpc::ClientContext context;
    v1::GetStepRequest request;
    request.mutable_run()->set_run_id("run");
    request.set_draw(1000);
    v1::GetStepResponse response;
    EXPECT_EQ(connection_.live().stub().GetStep(&context, request, &response).error_code(),
              grpc::NOT_FOUND);
  }
  {
    grpc::ClientContext context;
    v1::ReleaseRequest request;
    request.mutable_run()->set_run_id("run");
    request.add_sequences()->set_id("good");
    request.add_sequences()->set_id("");
    v1::ReleaseResponse response;
    const grpc::Status status = connection_.live().stub().Release(&context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("sequence.id"));
  }
  {
    grpc::ClientContext context;
    v1::ReleaseRequest request;
    request.mutable_run()->set_run_id("run");
    request.add_sequences()->set_id("good");
    for (uint64_t id = 1; id <= 4097; ++id) request.add_lease_ids(id);
    v1::ReleaseResponse response;
    const grpc::Status status = connection_.live().stub().Release(&context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("lease_ids: 4097 of them, must be at most 4096"));
  }
  for (const char* run : {"nobody", ""}) {
    grpc::ClientContext context;
    v1::GetRunRequest request;
    request.set_run_id(run);
    v1::GetRunResponse response;
    EXPECT_EQ(connection_.live().stub().GetRun(&context, request, &response).error_code(),
              grpc::NOT_FOUND);
  }
}

TEST(AdvanceVersion, MayNotGoBack) {
  LiveServer live;
  live.CreateRun(LiveServer::RunRequest("run", kTopK, kVocabulary));
  for (const auto& [version, code] :
       {std::pair{5, grpc::OK}, {5, grpc::OK}, {4, grpc::FAILED_PRECONDITION}}) {
    grpc::ClientContext context;
    v1::AdvanceVersionRequest request;
    request.mutable_run()->set_run_id("run");
    request.set_policy_version(version);
    v1::AdvanceVersionResponse response;
    EXPECT_EQ(live.stub().AdvanceVersion(&context, request, &response).error_code(), code);
  }
}

}  // namespace
}  // namespace sis
