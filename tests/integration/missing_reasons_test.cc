// Each reason why a position has no record: in Evaluate's answer, in FetchTopK's, and in the
// metrics.
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "server/testing/live_server.h"
#include "server/testing/record_generator.h"
#include "tests/integration/metrics_page.h"

namespace sis {
namespace {

constexpr int kTopK = 4;
constexpr int kVocabulary = 1000;
constexpr uint32_t kLength = 500;

ServerOptions WithMetrics() {
  ServerOptions options = LiveServer::Options();
  options.admin = "127.0.0.1:0";
  return options;
}

class MissingReasonsTest : public testing::Test {
 protected:
  void CreateRun(const std::function<void(v1::RunConfig&)>& change) {
    v1::CreateRunRequest request = LiveServer::RunRequest(run_, kTopK, kVocabulary);
    change(*request.mutable_config());
    live_->CreateRun(request);
  }
  void Append(const std::string& id, uint64_t policy_version = 0) {
    v1::AppendRequest batch;
    *batch.mutable_batch()->add_entries()->mutable_block() = records_.Block(id, policy_version);
    const auto appended = live_->Append({LiveServer::Header(run_, kVocabulary), batch});
    ASSERT_TRUE(appended.status.ok()) << appended.status.error_message();
    ASSERT_EQ(appended.acks.at(0).code(), 0) << appended.acks.at(0).message();
  }
  void AdvanceVersion(uint64_t version) {
    grpc::ClientContext context;
    v1::AdvanceVersionRequest request;
    request.mutable_run()->set_run_id(run_);
    request.set_policy_version(version);
    v1::AdvanceVersionResponse response;
    ASSERT_TRUE(live_->stub().AdvanceVersion(&context, request, &response).ok());
  }

  // Evaluates and fetches positions [0, length) of the sequence, of which those from `present` on
  // must be missing for this reason.
  void ExpectMissing(const std::string& id, uint32_t length, uint32_t present,
                     v1::MissingReason reason, const std::string& label) {
    const CurrentValues current = generator_.NextCurrent(records_);
    v1::EvaluateRequest request;
    request.mutable_run()->set_run_id(run_);
    v1::Slice& slice = *request.add_slices();
    slice.mutable_sequence()->set_id(id);
    slice.set_length(length);
    v1::Gathered gathered = current.Gathered(0, std::min(length, kLength));
    gathered.mutable_log_probs()->resize(length * kTopK * sizeof(float));
    gathered.mutable_sampled_log_probs()->resize(length * sizeof(float));
    *request.mutable_gathered() = gathered;
    v1::EvaluateResponse response;
    const grpc::Status status = live_->Evaluate(request, response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(response.missing_size(), 1);
    EXPECT_EQ(response.missing(0).first_position(), present);
    EXPECT_EQ(response.missing(0).length(), length - present);
    EXPECT_EQ(response.missing(0).reason(), reason);
    EXPECT_EQ(response.totals().missing(), length - present);

    const std::string page = MetricsPage(live_->admin_address());
    for (const std::string other : {"never_arrived", "evicted", "expired", "stale", "released"}) {
      EXPECT_EQ(MetricValue(page, "sis_missing_tokens_total{reason=\"" + other + "\",run=\"" +
                                      run_ + "\"}"),
                other == label ? length - present : 0)
          << other;
    }
    ExpectStepSays(reason, length - present);
    if (present == 0) {
      EXPECT_EQ(FetchedReason(id), reason);
    }
  }

  void ExpectStepSays(v1::MissingReason reason, uint64_t positions) {
    grpc::ClientContext context;
    v1::GetStepRequest request;
    request.mutable_run()->set_run_id(run_);
    v1::GetStepResponse step;
    const grpc::Status status = live_->stub().GetStep(&context, request, &step);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(step.missing_size(), 1);
    EXPECT_EQ(step.missing(0).reason(), reason);
    EXPECT_EQ(step.missing(0).positions(), positions);
  }

  v1::MissingReason FetchedReason(const std::string& id) {
    grpc::ClientContext context;
    v1::FetchTopKRequest request;
    request.mutable_run()->set_run_id(run_);
    request.add_slices()->mutable_sequence()->set_id(id);
    auto stream = live_->stub().FetchTopK(&context, request);
    v1::FetchTopKResponse response;
    EXPECT_TRUE(stream->Read(&response));
    const bool missing = response.header().missing_size() == 1;
    const v1::MissingReason reason =
        missing ? response.header().missing(0).reason() : v1::MISSING_REASON_UNSPECIFIED;
    while (stream->Read(&response)) continue;
    EXPECT_TRUE(stream->Finish().ok());
    return reason;
  }

  RecordGenerator generator_{kTopK, kVocabulary, 71};
  const Records records_ = generator_.NextRecords(kLength);
  const std::string run_ = testing::UnitTest::GetInstance()->current_test_info()->name();

  // One for all tests: its metrics listener takes seconds to stop.
  static void SetUpTestSuite() { live_ = std::make_unique<LiveServer>(WithMetrics()); }
  static void TearDownTestSuite() { live_.reset(); }
  static std::unique_ptr<LiveServer> live_;
};

std::unique_ptr<LiveServer> MissingReasonsTest::live_;

TEST_F(MissingReasonsTest, NeverArrived) {
  CreateRun([](auto&) {});
  ExpectMissing("none", 7, 0, v1::NEVER_ARRIVED, "never_arrived");
}

TEST_F(MissingReasonsTest, NeverArrivedBehindTheEnd) {
  CreateRun([](auto&) {});
  Append("a");
  ExpectMissing("a", kLength + 9, kLength, v1::NEVER_ARRIVED, "never_arrived");
}

TEST_F(MissingReasonsTest, Evicted) {
  CreateRun([](auto& config) {
    config.set_byte_quota(200'000);
    config.set_evict_unread(true);
  });
  for (int i = 0; i < 40; ++i) Append(std::to_string(i));
  ExpectMissing("0", kLength, 0, v1::EVICTED, "evicted");
}

TEST_F(MissingReasonsTest, Expired) {
  CreateRun([](auto& config) { config.set_time_to_live_seconds(0.001); });
  Append("a");
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  ExpectMissing("a", kLength, 0, v1::EXPIRED, "expired");
}

TEST_F(MissingReasonsTest, Stale) {
  CreateRun([](auto& config) { config.set_max_staleness(2); });
  Append("a");
  AdvanceVersion(3);
  ExpectMissing("a", kLength, 0, v1::STALE, "stale");
}

TEST_F(MissingReasonsTest, Released) {
  CreateRun([](auto&) {});
  Append("a");
  grpc::ClientContext context;
  v1::ReleaseRequest request;
  request.mutable_run()->set_run_id(run_);
  request.add_sequences()->set_id("a");
  v1::ReleaseResponse response;
  ASSERT_TRUE(live_->stub().Release(&context, request, &response).ok());
  ExpectMissing("a", kLength, 0, v1::RELEASED, "released");
}

}  // namespace
}  // namespace sis
