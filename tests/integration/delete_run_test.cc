// DeleteRun as clients see it.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <string>

#include "server/testing/live_server.h"
#include "server/testing/record_generator.h"
#include "tests/integration/metrics_page.h"

namespace sis {
namespace {

constexpr int kTopK = 4;
constexpr int kVocabulary = 1000;

bool Delete(LiveServer& live, const std::string& run_id) {
  v1::DeleteRunRequest request;
  request.mutable_run()->set_run_id(run_id);
  grpc::ClientContext context;
  v1::DeleteRunResponse response;
  const grpc::Status status = live.stub().DeleteRun(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.deleted();
}

TEST(DeleteRunTest, RemovesEverythingAndHoldersGetErrors) {
  ServerOptions options = LiveServer::Options();
  options.admin = "127.0.0.1:0";
  LiveServer live(options);
  const v1::CreateRunRequest run = LiveServer::RunRequest("run", kTopK, kVocabulary);
  live.CreateRun(run);
  const Records records = RecordGenerator(kTopK, kVocabulary, 1).NextRecords(10);

  grpc::ClientContext context;
  const auto stream = live.stub().Append(&context);
  v1::AppendRequest batch;
  *batch.mutable_batch()->add_entries() = records.Block("a").Entry(run.config());
  v1::AppendResponse response;
  ASSERT_TRUE(stream->Write(LiveServer::Header("run", kVocabulary)));
  ASSERT_TRUE(stream->Write(batch));
  ASSERT_TRUE(stream->Read(&response));
  ASSERT_EQ(response.acks(0).code(), 0);
  const std::string series = "sis_ingest_positions_total{run=\"run\"}";
  const std::string before = MetricsPage(live.admin_address());
  EXPECT_EQ(MetricValue(before, series), 10);
  EXPECT_GT(*MetricValue(before, "sis_cache_bytes"), 0);

  EXPECT_TRUE(Delete(live, "run"));
  const std::string after = MetricsPage(live.admin_address());
  EXPECT_EQ(after.find("run=\"run\""), std::string::npos);
  EXPECT_EQ(MetricValue(after, "sis_cache_bytes"), 0);

  stream->Write(batch);
  stream->WritesDone();
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_FALSE(Delete(live, "run"));
}

}  // namespace
}  // namespace sis
