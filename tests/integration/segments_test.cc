// Shared memory: what is in a segment means what it would mean in the message, and a client that
// does anything wrong with it harms nobody.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/main/server.h"
#include "server/testing/live_server.h"
#include "server/testing/record_generator.h"
#include "tests/integration/leased_segment.h"
#include "tests/integration/metrics_page.h"

namespace sis {
namespace {

constexpr int kTopK = 5;
constexpr int kVocabulary = 100;
constexpr uint32_t kLength = 700;

// As the page of metrics says it.
double Metric(LiveServer& live, const std::string& series) {
  return MetricValue(MetricsPage(live.admin_address()), series).value_or(-1);
}

// Until `done`, which must come.
void WaitFor(const std::function<bool()>& done) {
  while (!done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(LeaseTest, OffByDefault) {
  ServerOptions options = LiveServer::SharedMemoryOptions(0);
  LiveServer live(options);
  const LeasedSegment segment(live.stub(), 1);
  EXPECT_EQ(segment.status().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_TRUE(absl::StrContains(segment.status().error_message(), "--shared_memory_bytes"));
}

TEST(LeaseTest, OnlyForClientsOverAUnixSocket) {
  ServerOptions options = LiveServer::SharedMemoryOptions();
  const std::string socket = options.listen;
  options.listen = absl::StrCat("127.0.0.1:0,", socket);
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  const std::string both = (*server)->grpc_address();
  const std::string tcp = both.substr(0, both.find(','));
  EXPECT_EQ(both, absl::StrCat(tcp, ",", socket));
  const auto stub = [](const std::string& address) {
    return v1::RatioService::NewStub(
        grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  };
  const LeasedSegment refused(*stub(tcp), 1);
  EXPECT_EQ(refused.status().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  const LeasedSegment granted(*stub(socket), 1);
  EXPECT_TRUE(granted.status().ok()) << granted.status().error_message();

  // Nor may others use it, though they know its name.
  v1::EvaluateRequest evaluate;
  evaluate.set_segment(granted.name());
  v1::FetchTopKRequest fetch;
  fetch.set_segment(granted.name());
  for (const auto& [address, code] :
       {std::pair(tcp, grpc::PERMISSION_DENIED), {socket, grpc::NOT_FOUND}}) {
    const auto client = stub(address);
    {
      grpc::ClientContext context;
      v1::EvaluateResponse response;
      EXPECT_EQ(client->Evaluate(&context, evaluate, &response).error_code(), code);
    }
    {
      grpc::ClientContext context;
      EXPECT_EQ(client->FetchTopK(&context, fetch)->Finish().error_code(), code);
    }
  }

  struct stat file;
  ASSERT_EQ(stat(socket.substr(5).c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600);
}

TEST(LeaseTest, NoSocketThatEverybodyCanConnectTo) {
  ServerOptions options = LiveServer::SharedMemoryOptions();
  options.listen = absl::StrCat("unix-abstract:sis-", getpid());
  EXPECT_EQ(Server::Start(options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(LeaseTest, BytesAreBoundedAndGivenBack) {
  ServerOptions options = LiveServer::SharedMemoryOptions(1 << 20);
  options.admin = "127.0.0.1:0";
  LiveServer live(options);
  LeasedSegment first(live.stub(), 600 << 10);
  ASSERT_TRUE(first.status().ok()) << first.status().error_message();
  EXPECT_EQ(Metric(live, "sis_segment_bytes"), 600 << 10);
  EXPECT_EQ(Metric(live, "sis_segments"), 1);
  for (const uint64_t bytes : {uint64_t{600} << 10, uint64_t{1} << 63, UINT64_MAX}) {
    const LeasedSegment second(live.stub(), bytes);
    EXPECT_EQ(second.status().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << bytes;
  }
  EXPECT_EQ(LeasedSegment(live.stub(), 0).status().error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(first.End().error_code(), grpc::StatusCode::CANCELLED);
  WaitFor([&] { return Metric(live, "sis_segment_bytes") == 0; });
  EXPECT_TRUE(LeasedSegment(live.stub(), 600 << 10).status().ok());
  EXPECT_NE(shm_open(first.object().c_str(), O_RDWR, 0), 0) << "still linked";
}

TEST(LeaseTest, EndsWithTheServerAtOnce) {
  LiveServer live(LiveServer::SharedMemoryOptions());
  LeasedSegment segment(live.stub(), 1);
  ASSERT_TRUE(segment.status().ok());
  // A call that nobody ends would take all of the grace.
  live.Shutdown(absl::InfiniteDuration());
  EXPECT_EQ(segment.Wait().error_code(), grpc::StatusCode::UNAVAILABLE);
}

// A server with one run, whose sequence "s" is recorded, and a client with a segment.
class SegmentsTest : public testing::Test {
 protected:
  SegmentsTest() : generator_(kTopK, kVocabulary, 7), live_(LiveServer::SharedMemoryOptions()) {
    live_.CreateRun(LiveServer::RunRequest("run", kTopK, kVocabulary));
    records_ = generator_.NextRecords(kLength);
    v1::AppendRequest blocks;
    *blocks.mutable_batch()->add_entries()->mutable_block() = records_.Block("s");
    const auto appended = live_.Append({LiveServer::Header("run", kVocabulary), blocks});
    EXPECT_TRUE(appended.status.ok() && appended.acks.at(0).code() == 0);
    current_ = generator_.NextCurrent(records_);
  }

  // All of the sequence, and as many positions of one that is not there.
  v1::EvaluateRequest Request() {
    v1::EvaluateRequest request;
    request.mutable_run()->set_run_id("run");
    for (const char* id : {"s", "missing"}) {
      request.add_slices()->mutable_sequence()->set_id(id);
      request.mutable_slices(request.slices_size() - 1)->set_length(kLength);
    }
    return request;
  }

  // Twice the rows of the sequence.
  static std::string Twice(const std::string& bytes) { return bytes + bytes; }

  v1::Gathered Gathered() {
    v1::Gathered gathered = current_.Gathered(0, kLength);
    gathered.set_log_probs(Twice(gathered.log_probs()));
    gathered.set_sampled_log_probs(Twice(gathered.sampled_log_probs()));
    return gathered;
  }

  // Puts every array of the request into the segment, asks for the answers behind them, and
  // returns them as they would have come in the message.
  grpc::Status EvaluateInSegment(LeasedSegment& segment, v1::EvaluateRequest request,
                                 v1::EvaluateResponse& response) {
    segment.PutArrays(request);
    request.set_segment(segment.name());
    *request.mutable_answers() = segment.Rest();
    const grpc::Status status = live_.Evaluate(request, response);
    if (status.ok()) segment.GetArrays(response);
    return status;
  }

  RecordGenerator generator_;
  LiveServer live_;
  Records records_;
  CurrentValues current_;
};

TEST_F(SegmentsTest, TheSameAnswersAsInMessages) {
  LeasedSegment segment(live_.stub(), 8 << 20);
  ASSERT_TRUE(segment.status().ok()) << segment.status().error_message();
  v1::EvaluateRequest plain = Request();
  *plain.mutable_gathered() = Gathered();
  std::vector<float> own(2 * kLength, -1.5f);
  plain.set_own_log_probs(Bytes(own));
  std::vector<v1::EvaluateRequest> requests{plain};

  v1::EvaluateRequest all = plain;
  std::vector<uint8_t> mask;
  std::vector<float> advantages;
  for (uint32_t i = 0; i < 2 * kLength; ++i) {
    mask.push_back(i % 7 != 0);
    advantages.push_back(static_cast<float>(i % 13) - 6);
  }
  all.set_mask(Bytes(mask));
  all.set_advantages(Bytes(advantages));
  all.mutable_algorithm()->mutable_grpo();
  for (int output = 1; output < v1::Output_ARRAYSIZE; ++output) {
    all.add_outputs(static_cast<v1::Output>(output));
  }
  requests.push_back(all);

  v1::EvaluateRequest decoupled = all;
  std::vector<float> finite = Values<float>(decoupled.gathered().sampled_log_probs());
  for (float& value : finite) value = std::max(value, -50.0f);
  decoupled.mutable_gathered()->set_sampled_log_probs(Bytes(finite));
  decoupled.mutable_decoupled()->set_current_log_probs(Bytes(own));
  requests.push_back(decoupled);

  v1::EvaluateRequest reduced = plain;
  reduced.mutable_reduced()->CopyFrom(current_.Reduced(records_, kTopK, 0, kLength));
  for (std::string* array : {reduced.mutable_reduced()->mutable_sampled_log_probs(),
                             reduced.mutable_reduced()->mutable_log_envelopes(),
                             reduced.mutable_reduced()->mutable_covered_masses()}) {
    *array = Twice(*array);
  }
  requests.push_back(reduced);

  uint64_t draw = 0;
  for (v1::EvaluateRequest& request : requests) {
    SCOPED_TRACE(draw);
    request.set_draw(++draw);
    v1::EvaluateResponse expected;
    grpc::Status status = live_.Evaluate(request, expected);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_GT(expected.totals().accepted(), 0);
    EXPECT_EQ(expected.newly_counted(), 2 * kLength - expected.totals().masked());
    expected.set_newly_counted(0);
    v1::EvaluateResponse response;
    status = EvaluateInSegment(segment, request, response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.SerializeAsString(), expected.SerializeAsString());
    // Answers in the message, and arrays that begin anywhere.
    segment.PutFrom(draw);
    segment.PutArrays(request);
    request.set_segment(segment.name());
    status = live_.Evaluate(request, response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.SerializeAsString(), expected.SerializeAsString());
  }
}

TEST_F(SegmentsTest, AFileThatIsCutOffSpoilsOnlyItsOwnAnswer) {
  v1::EvaluateRequest plain = Request();
  *plain.mutable_gathered() = Gathered();

  LeasedSegment segment(live_.stub(), 8 << 20);
  v1::EvaluateRequest request = plain;
  segment.PutArrays(request);
  request.set_segment(segment.name());
  v1::EvaluateResponse expected;
  v1::EvaluateResponse response;
  ASSERT_TRUE(live_.Evaluate(plain, expected).ok());
  ASSERT_TRUE(live_.Evaluate(request, response).ok());
  EXPECT_EQ(response.accept_bits(), expected.accept_bits());

  const int file = shm_open(segment.object().c_str(), O_RDWR, 0);
  ASSERT_EQ(ftruncate(file, 0), 0);
  close(file);
  // Then all probabilities of used slots are 1.
  const grpc::Status status = live_.Evaluate(request, response);
  EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT) << status.error_message();
  EXPECT_TRUE(absl::StrContains(status.error_message(), "gathered.log_probs at position"))
      << status.error_message();
  EXPECT_TRUE(live_.Evaluate(plain, response).ok());
}

TEST_F(SegmentsTest, BadRangesAreRefusedAndCountNothing) {
  LeasedSegment segment(live_.stub(), 1 << 20);
  v1::EvaluateRequest good = Request();
  *good.mutable_gathered() = Gathered();
  segment.PutArrays(good);
  good.set_segment(segment.name());
  *good.mutable_answers() = segment.Rest();
  const size_t bytes = good.gathered().log_probs().size();
  ASSERT_EQ(bytes, 16);
  const uint64_t size = segment.size();

  struct Case {
    std::string message;
    std::function<void(v1::EvaluateRequest&)> spoil;
  };
  const auto log_probs = [](uint64_t offset, uint64_t size) {
    return [=](v1::EvaluateRequest& request) {
      request.mutable_gathered()->set_log_probs(SegmentRange{offset, size}.ToBytes());
    };
  };
  const auto answers = [](uint64_t offset, uint64_t size) {
    return [=](v1::EvaluateRequest& request) {
      request.mutable_answers()->set_offset(offset);
      request.mutable_answers()->set_bytes(size);
    };
  };
  const uint64_t values = 2 * kLength * kTopK * sizeof(float);
  for (const Case& bad : std::vector<Case>{
           {"gathered.log_probs: ", log_probs(size, values)},
           {"gathered.log_probs: ", log_probs(size - 64, values)},
           {"gathered.log_probs: ", log_probs(uint64_t{0} - 64, values)},
           {"gathered.log_probs: ", log_probs(64, UINT64_MAX)},
           {"gathered.log_probs: ", log_probs(0, values - 4)},
           {"gathered.log_probs: ", log_probs(0, 0)},
           {"gathered.log_probs: not the 16 bytes",
            [&](auto& request) {
              request.mutable_gathered()->set_log_probs(std::string(17, 'x'));
            }},
           {"mask: not the 16 bytes", [](auto& request) { request.set_mask("x"); }},
           {"answers.offset: 1, not a multiple of 64", answers(1, 1000)},
           {"answers: ", answers(size, 1000)},
           {"answers: ", answers(size - 64, UINT64_MAX)},
           {"answers.bytes: 100, but 175 are needed", answers(size - 128, 100)},
           {"gathered.log_probs: overlaps the answers", answers(0, 1000)},
           {"gathered.sampled_log_probs: overlaps the answers",
            answers((values + 63) / 64 * 64 + 64, 1000)},
       }) {
    v1::EvaluateRequest request = good;
    bad.spoil(request);
    v1::EvaluateResponse response;
    const grpc::Status status = live_.Evaluate(request, response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << bad.message;
    EXPECT_TRUE(absl::StartsWith(status.error_message(), bad.message)) << status.error_message();
  }
  v1::EvaluateRequest no_segment = Request();
  *no_segment.mutable_gathered() = Gathered();
  no_segment.mutable_answers()->set_bytes(1000);
  v1::EvaluateResponse response;
  EXPECT_EQ(live_.Evaluate(no_segment, response).error_message(),
            "answers: set, but segment is not");
  const grpc::Status status = live_.Evaluate(good, response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.newly_counted(), 2 * kLength);
}

TEST_F(SegmentsTest, OnlyLeasedSegments) {
  v1::EvaluateRequest request = Request();
  LeasedSegment segment(live_.stub(), 1 << 20);
  *request.mutable_gathered() = Gathered();
  segment.PutArrays(request);
  const auto code_with = [&](const std::string& name) {
    request.set_segment(name);
    v1::EvaluateResponse response;
    return live_.Evaluate(request, response).error_code();
  };
  std::string guess = segment.name();
  guess.back() = guess.back() == '0' ? '1' : '0';
  EXPECT_EQ(code_with(guess), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(code_with("/etc/passwd"), grpc::StatusCode::NOT_FOUND);
  // What every user of the machine can see in /dev/shm, until it is unlinked.
  EXPECT_EQ(code_with(segment.object()), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(code_with(segment.object().substr(5)), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(code_with(segment.name()), grpc::StatusCode::OK);
  segment.End();
  WaitFor([&] { return code_with(segment.name()) == grpc::StatusCode::NOT_FOUND; });
}

}  // namespace
}  // namespace sis
