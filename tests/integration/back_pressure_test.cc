// A worker that offers more than there is room for is refused until there is.
#include <gtest/gtest.h>

#include "server/testing/live_server.h"
#include "server/testing/record_generator.h"

namespace sis {
namespace {

constexpr int kTopK = 4;
constexpr int kVocabulary = 1000;

// Run "full" has room for one sequence, 'held', which is leased; run "roomy" has room.
class BackPressureTest : public testing::Test {
 protected:
  BackPressureTest() {
    live_ = std::make_unique<LiveServer>(LiveServer::Options());
    live_->CreateRun(LiveServer::RunRequest("roomy", kTopK, kVocabulary));
    EXPECT_EQ(Append("roomy", "first").code(), 0);
    v1::CreateRunRequest full = LiveServer::RunRequest("full", kTopK, kVocabulary);
    full.mutable_config()->set_byte_quota(GetRun("roomy").bytes() * 3 / 2);
    live_->CreateRun(full);
    EXPECT_EQ(Append("full", "held").code(), 0);
    LeaseHeld();
  }

  v1::AppendRequest Batch(const std::string& id) {
    v1::AppendRequest request;
    *request.mutable_batch()->add_entries()->mutable_block() = records_.Block(id);
    return request;
  }
  v1::Ack Append(const std::string& run, const std::string& id) {
    const auto appended = live_->Append({LiveServer::Header(run, kVocabulary), Batch(id)});
    EXPECT_TRUE(appended.status.ok()) << appended.status.error_message();
    return appended.acks.at(0);
  }
  v1::Run GetRun(const std::string& id) {
    grpc::ClientContext context;
    v1::GetRunRequest request;
    request.set_run_id(id);
    v1::GetRunResponse response;
    EXPECT_TRUE(live_->stub().GetRun(&context, request, &response).ok());
    return response.run();
  }
  void LeaseHeld() {
    grpc::ClientContext context;
    v1::FetchTopKRequest request;
    request.mutable_run()->set_run_id("full");
    request.add_slices()->mutable_sequence()->set_id("held");
    request.set_lease_seconds(3600);
    auto stream = live_->stub().FetchTopK(&context, request);
    v1::FetchTopKResponse response;
    while (stream->Read(&response)) {
      if (response.has_header()) lease_ = response.header().lease_id();
    }
    EXPECT_TRUE(stream->Finish().ok());
  }
  void EndLease() {
    grpc::ClientContext context;
    v1::ReleaseRequest request;
    request.mutable_run()->set_run_id("full");
    request.add_lease_ids(lease_);
    v1::ReleaseResponse response;
    EXPECT_TRUE(live_->stub().Release(&context, request, &response).ok());
    EXPECT_EQ(response.released_leases(), 1);
  }

  const Records records_ = RecordGenerator(kTopK, kVocabulary, 61).NextRecords(500);
  std::unique_ptr<LiveServer> live_;
  uint64_t lease_ = 0;
};

TEST_F(BackPressureTest, AFullRunIsRefusedWithADelayUntilThereIsRoom) {
  const v1::Ack ack = Append("full", "more");
  EXPECT_EQ(static_cast<absl::StatusCode>(ack.code()), absl::StatusCode::kResourceExhausted);
  EXPECT_GT(ack.retry_seconds(), 0);
  EXPECT_EQ(Append("full", "held").code(), 0) << "sent again";
  EXPECT_EQ(Append("roomy", "another").code(), 0);
  EXPECT_EQ(GetRun("full").sequences(), 1);
  EndLease();
  EXPECT_EQ(Append("full", "more").code(), 0);
}

}  // namespace
}  // namespace sis
