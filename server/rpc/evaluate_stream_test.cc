// A trainer that is ahead waits in its own writes: the server reads no further than it may.
#include "server/rpc/evaluate_stream.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/config.h"
#include "kernels/decide/scalar_backend.h"
#include "server/rpc/ratio_service.h"
#include "server/testing/cache_fixture.h"
#include "server/testing/record_generator.h"

namespace sis {
namespace {

constexpr int kSlots = 4;

// Lets nothing through until it is opened.
class Gate final : public Backend {
 public:
  std::string_view name() const override { return "gate"; }

  void Evaluate(const EvaluateParameters& parameters,
                std::span<const Stretch> segments) const override {
    {
      std::unique_lock lock(mutex_);
      ++arrived_;
      changed_.notify_all();
      changed_.wait(lock, [this] { return open_; });
    }
    backend_.Evaluate(parameters, segments);
  }

  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void WaitForArrivals(int count) const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrived_ >= count; });
  }
  int arrived() const {
    const std::lock_guard lock(mutex_);
    return arrived_;
  }

 private:
  const ScalarBackend backend_{};
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int arrived_ = 0;
  bool open_ = false;
};

class EvaluateStreamTest : public testing::Test {
 protected:
  EvaluateStreamTest() : run_(cache_.CreateRun("r", LosslessConfig(kSlots))) {
    EXPECT_EQ(AppendBlock(cache_, *run_, records_.Block("a")).code(), 0);
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.SetMaxReceiveMessageSize(-1);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    stub_ = v1::RatioService::NewStub(grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                                          grpc::InsecureChannelCredentials()));
  }

  // One position, and so many bytes that mean nothing.
  v1::EvaluateRequest Request(uint64_t draw, size_t padding = 0) {
    v1::EvaluateRequest request;
    request.mutable_run()->set_run_id("r");
    request.set_draw(draw);
    v1::Slice& slice = *request.add_slices();
    slice.mutable_sequence()->set_id("a");
    slice.set_length(1);
    *request.mutable_gathered() = current_.Gathered(0, 1);
    if (padding > 0) {
      request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(
          1000, std::string(padding, 'x'));
    }
    return request;
  }

  // Sends all requests; the server must take `taken` of them before it has answered one, and all
  // in the end.
  void ExpectTakenUnanswered(const std::vector<v1::EvaluateRequest>& requests, int taken) {
    grpc::ClientContext context;
    const auto stream = stub_->EvaluateStream(&context);
    std::thread writer([&] {
      for (const v1::EvaluateRequest& request : requests) EXPECT_TRUE(stream->Write(request));
      stream->WritesDone();
    });
    gate_.WaitForArrivals(taken);
    // What was sent before these calls has reached the server when they are answered; there are
    // workers enough to take it.
    for (int i = 0; i < 50; ++i) {
      grpc::ClientContext other;
      v1::ListRunsResponse runs;
      EXPECT_TRUE(stub_->ListRuns(&other, v1::ListRunsRequest(), &runs).ok());
    }
    EXPECT_EQ(gate_.arrived(), taken);
    gate_.Open();
    size_t answers = 0;
    for (v1::EvaluateResponse response; stream->Read(&response);) {
      EXPECT_EQ(response.newly_counted(), 1);
      ++answers;
    }
    writer.join();
    const grpc::Status status = stream->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(answers, requests.size());
  }

  Cache cache_;
  RecordGenerator generator_{kSlots, 1000, 7};
  const Records records_ = generator_.NextRecords(1);
  const CurrentValues current_ = generator_.NextCurrent(records_);
  const std::shared_ptr<sis::Run> run_;
  Gate gate_;
  OpenStreams streams_{[this] { return cache_.clock.Now(); }};
  WorkerPool workers_{16};
  StoreThreads store_threads_{0};
  SegmentRegistry segments_{0};
  prometheus::Registry registry_;
  RpcMetrics metrics_{registry_};
  ServerStatus status_{cache_.registry, cache_.room_queue, segments_, metrics_,
                       [this] { return cache_.clock.Now(); }};
  ByteBudget parsing_{INT64_MAX};
  RatioService service_{{cache_.runs, cache_.room_queue, segments_, gate_, workers_, store_threads_,
                         streams_, metrics_, status_, [](auto&&...) { return Caller(); },
                         parsing_}};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::RatioService::Stub> stub_;
};

TEST_F(EvaluateStreamTest, TakesNoMoreRequestsThanItMayOweAnswersTo) {
  std::vector<v1::EvaluateRequest> requests;
  for (int draw = 1; draw <= 12; ++draw) requests.push_back(Request(draw));
  ExpectTakenUnanswered(requests, EvaluateStream::kMaxRequests);
}

TEST_F(EvaluateStreamTest, NorMoreBytes) {
#ifdef ABSL_HAVE_THREAD_SANITIZER
  GTEST_SKIP()
      << "gRPC is not instrumented: of every byte that it receives ThreadSanitizer makes a "
         "report, to suppress it; of 64 MiB that takes minutes";
#endif
  std::vector<v1::EvaluateRequest> requests;
  for (int draw = 1; draw <= 2; ++draw) {
    requests.push_back(Request(draw, EvaluateStream::kMaxBytes / 2));
  }
  for (int draw = 3; draw <= 6; ++draw) requests.push_back(Request(draw));
  ExpectTakenUnanswered(requests, 2);
}

TEST_F(EvaluateStreamTest, AnswersWhatItHasWhenTheServerShutsDown) {
  grpc::ClientContext context;
  const auto stream = stub_->EvaluateStream(&context);
  for (int draw = 1; draw <= 2; ++draw) EXPECT_TRUE(stream->Write(Request(draw)));
  gate_.WaitForArrivals(2);
  streams_.Close();
  gate_.Open();
  v1::EvaluateResponse response;
  for (int draw = 1; draw <= 2; ++draw) {
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.newly_counted(), 1);
  }
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);

  grpc::ClientContext later;
  EXPECT_EQ(stub_->EvaluateStream(&later)->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace sis
