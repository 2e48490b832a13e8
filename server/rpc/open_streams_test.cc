// A client that stops reading can't hold its unsent messages forever.
#include "server/rpc/open_streams.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "kernels/testing/scalar_backend.h"
#include "server/rpc/ratio_service.h"
#include "server/testing/cache_fixture.h"
#include "server/testing/record_generator.h"

namespace sis {
namespace {

constexpr int kSlots = 4;
// Positions of several messages.
constexpr int kPositions = 200'000;

class OpenStreamsTest : public testing::Test {
 protected:
  OpenStreamsTest() : run_(cache_.CreateRun("r", LosslessConfig(kSlots))) {
    EXPECT_EQ(AppendBlock(cache_, *run_, records_.Block("a")).code(), 0);
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    // gRPC buffers only 64 KiB for a client that doesn't read.
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1 << 16);
    stub_ = v1::RatioService::NewStub(grpc::CreateCustomChannel(
        "127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials(), arguments));
  }

  v1::FetchTopKRequest Request() {
    v1::FetchTopKRequest request;
    request.mutable_run()->set_run_id("r");
    request.set_whole_blocks(true);
    request.add_slices()->mutable_sequence()->set_id("a");
    return request;
  }
  // Returns true if a fetch holds the sequence, so that it can't be evicted.
  bool IsHeld() {
    const auto sequence = std::get<std::shared_ptr<Sequence>>(run_->Find({"a", 0}));
    return sequence.use_count() > 2;  // the run, and this
  }
  static void WaitFor(const std::function<bool()>& done) {
    while (!done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  Cache cache_;
  RecordGenerator generator_{kSlots, 1000, 7};
  const Records records_ = generator_.NextRecords(kPositions);
  const std::shared_ptr<sis::Run> run_;
  const ScalarBackend backend_{};
  OpenStreams streams_{[this] { return cache_.clock.Now(); }};
  WorkerPool workers_{1};
  WorkerPool store_threads_{0};
  prometheus::Registry registry_;
  RpcMetrics metrics_{registry_};
  ServerStatus status_{cache_.registry, metrics_, [this] { return cache_.clock.Now(); }};
  const std::unique_ptr<v1::RatioService::Service> service_ =
      MakeRatioService({cache_.runs, backend_, workers_, store_threads_, streams_, metrics_,
                        status_, [](auto&&...) { return Caller(); }});
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::RatioService::Stub> stub_;
};

TEST_F(OpenStreamsTest, AFetchThatNobodyReadsReleasesItsSequences) {
  grpc::ClientContext context;
  const auto stalled = stub_->FetchTopK(&context, Request());
  WaitFor([&] { return IsHeld(); });
  cache_.clock.Advance(OpenStreams::kPatience);
  streams_.CancelStalled();
  // It is not late yet, so the stream continues.
  v1::FetchTopKResponse response;
  EXPECT_TRUE(stalled->Read(&response));
  EXPECT_GT(response.slices(0).blocks_size(), 0);
  EXPECT_TRUE(IsHeld());

  // The next write waits for the client. No write is late before it begins.
  WaitFor([&] {
    cache_.clock.Advance(OpenStreams::kPatience + absl::Seconds(1));
    streams_.CancelStalled();
    return !IsHeld();
  });
  while (stalled->Read(&response)) {
  }
  EXPECT_EQ(stalled->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(OpenStreamsTest, AnAppendWhoseAcksNobodyReadsEnds) {
  grpc::ClientContext context;
  const auto stalled = stub_->Append(&context);
  v1::AppendRequest header;
  *header.mutable_header() = HeaderOf(*run_);
  EXPECT_TRUE(stalled->Write(header));
  // Every entry is refused, so that acks are longer than entries.
  v1::AppendRequest batch;
  for (int i = 0; i < 10'000; ++i) batch.mutable_batch()->add_entries();
  std::thread writer([&] {
    while (stalled->Write(batch)) {
    }
  });
  // Only the first response is read.
  v1::AppendResponse response;
  EXPECT_TRUE(stalled->Read(&response));
  // No write is late until a response waits for the client.
  WaitFor([&] {
    cache_.clock.Advance(OpenStreams::kPatience + absl::Seconds(1));
    streams_.CancelStalled();
    return streams_.AwaitNone(absl::InfinitePast());
  });
  writer.join();
  while (stalled->Read(&response)) {
  }
  EXPECT_EQ(stalled->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(OpenStreamsTest, AStreamThatIsReadMayTakeAnyTime) {
  grpc::ClientContext context;
  const auto read = stub_->FetchTopK(&context, Request());
  v1::FetchedSlice last;
  for (v1::FetchTopKResponse response; read->Read(&response);) {
    last = *response.slices().rbegin();
    cache_.clock.Advance(OpenStreams::kPatience / 2);
    streams_.CancelStalled();
  }
  EXPECT_TRUE(read->Finish().ok());
  EXPECT_TRUE(last.has_record_digest());
  EXPECT_EQ(last.length(), kPositions);
}

}  // namespace
}  // namespace sis
