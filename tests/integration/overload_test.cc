// Workers offer four times what the cache holds while slow readers keep sequences. The process
// stays within the budget and a constant, nothing acked is lost in silence, and it ends in good
// health.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "kernels/block/digest.h"
#include "kernels/block/pack.h"
#include "server/testing/record_generator.h"
#include "server/testing/server_process.h"
#include "sis/v1/ratio_service.grpc.pb.h"

namespace sis {
namespace {

constexpr int kTopK = 50;
constexpr int kVocabulary = 100'000;
constexpr int64_t kBudget = int64_t{64} << 20;
// Memory beyond --cache_bytes (docs/configuration.md): messages in flight (here about twenty of 0.5
// MiB), the lists of each run, and free memory of the allocator.
constexpr int64_t kOnTop = int64_t{48} << 20;

constexpr int kWorkers = 4;
constexpr int kReaders = 3;
constexpr uint32_t kBlock = 256;
constexpr uint32_t kBlocksPerSequence = 8;
constexpr int64_t kBytesPerToken = 8 * kTopK + 8;
constexpr int kSequencesPerWorker =
    static_cast<int>(4 * kBudget / kWorkers / (kBytesPerToken * kBlock * kBlocksPerSequence));

class OverloadTest : public testing::Test {
 protected:
  OverloadTest()
      : server_({"--listen=127.0.0.1:0", "--cache_bytes=" + std::to_string(kBudget)}),
        channel_(grpc::CreateChannel(server_.address(), grpc::InsecureChannelCredentials())) {
    resident_at_start_ = server_.resident_bytes();
    v1::CreateRunRequest request;
    request.set_run_id("run");
    config_.set_top_k(kTopK);
    config_.set_vocabulary_size(kVocabulary);
    config_.set_log_prob_encoding(v1::LOG_PROB_ENCODING_FLOAT32);
    config_.set_evict_unread(true);  // nobody reads all of it
    *request.mutable_config() = config_;
    grpc::ClientContext context;
    v1::CreateRunResponse response;
    EXPECT_TRUE(stub_->CreateRun(&context, request, &response).ok());
  }

  // The same content whenever it is asked for.
  RecordedBlock BlockOf(const std::string& id, uint32_t first_position) const {
    return records_.Block(id, first_position, 0, RowOf(id, first_position), kBlock);
  }
  uint32_t RowOf(const std::string& id, uint32_t first_position) const {
    return static_cast<uint32_t>((std::hash<std::string>()(id) + 37 * first_position) %
                                 (records_.size() - kBlock));
  }

  // Streams its sequences block by block, each offered until the server takes it or says that it
  // never will.
  void Work(int worker) {
    grpc::ClientContext context;
    const auto stream = stub_->Append(&context);
    v1::AppendRequest header;
    header.mutable_header()->mutable_run()->set_run_id("run");
    header.mutable_header()->set_vocabulary_size(kVocabulary);
    header.mutable_header()->mutable_sampling()->set_log_probs(v1::Sampling::LOG_PROBS_RAW);
    header.mutable_header()->mutable_sampling()->set_temperature(1);
    ASSERT_TRUE(stream->Write(header));
    for (int i = 0; i < kSequencesPerWorker; ++i) {
      const std::string id = std::to_string(worker) + "-" + std::to_string(i);
      for (uint32_t block = 0; block < kBlocksPerSequence; ++block) {
        v1::AppendRequest request;
        *request.mutable_batch()->add_entries() = BlockOf(id, block * kBlock).Entry(config_);
        ASSERT_TRUE(stream->Write(request));
        v1::AppendResponse response;
        ASSERT_TRUE(stream->Read(&response));
        const v1::Ack& ack = response.acks(0);
        ++acks_[ack.code()];
        if (ack.code() == 0) {
          EXPECT_EQ(ack.committed_length(), (block + 1) * kBlock);
          const std::lock_guard lock(mutex_);
          acked_[id] = ack.committed_length();
        } else if (ack.code() == grpc::StatusCode::RESOURCE_EXHAUSTED) {
          EXPECT_GT(ack.retry_seconds(), 0);
          --block;  // again
        } else {
          // Evicted in the middle: the rest of the sequence can't be stored.
          ASSERT_EQ(ack.code(), grpc::StatusCode::FAILED_PRECONDITION) << ack.message();
          break;
        }
      }
    }
    stream->WritesDone();
    EXPECT_TRUE(stream->Finish().ok());
  }

  // Keeps a few sequences for a while longer than it reads them.
  void ReadSlowly(uint32_t seed) {
    std::mt19937 random(seed);
    while (!stop_) {
      v1::FetchTopKRequest request;
      request.mutable_run()->set_run_id("run");
      {
        const std::lock_guard lock(mutex_);
        for (int i = 0; i < 16 && !acked_.empty(); ++i) {
          const auto any = std::next(acked_.begin(), random() % acked_.size());
          request.add_slices()->mutable_sequence()->set_id(any->first);
        }
      }
      if (request.slices().empty()) continue;
      request.set_keep_seconds(0.5);
      grpc::ClientContext context;
      const auto stream = stub_->FetchTopK(&context, request);
      v1::FetchTopKResponse response;
      while (stream->Read(&response)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      EXPECT_TRUE(stream->Finish().ok());
    }
  }

  // Checks that every acked position is there bit by bit, or missing for a reason. Returns how many
  // are there.
  uint32_t Verify(const std::string& id, uint32_t acked) {
    v1::FetchTopKRequest request;
    request.mutable_run()->set_run_id("run");
    request.add_slices()->mutable_sequence()->set_id(id);
    grpc::ClientContext context;
    const auto stream = stub_->FetchTopK(&context, request);
    v1::FetchTopKResponse response;
    uint64_t digest = 0;
    bool missing = false;
    while (stream->Read(&response)) {
      for (const v1::FetchedSlice& slice : response.slices()) {
        for (const v1::MissingRange& range : slice.missing()) {
          missing = true;
          EXPECT_EQ(range.reason(), v1::MISSING_REASON_EVICTED) << id;
        }
        digest += slice.record_digest();
      }
    }
    EXPECT_TRUE(stream->Finish().ok());
    if (missing) {
      EXPECT_EQ(digest, 0);
      return 0;
    }
    uint64_t expected = 0;
    for (uint32_t first = 0; first < acked; first += kBlock) {
      const auto block =
          PackBlock(records_.View(RowOf(id, first), kBlock), {.encoding = BlockEncoding::kFloat32,
                                                              .slots = kTopK,
                                                              .vocabulary_size = kVocabulary,
                                                              .first_position = first});
      expected += DigestOf(*OpenBlock(*block, /*checksums=*/false), 0, kBlock);
    }
    EXPECT_EQ(digest, expected) << id;
    return acked;
  }

  const Records records_ = RecordGenerator(kTopK, kVocabulary, 81).NextRecords(1000);
  v1::RunConfig config_;
  ServerProcess server_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::RatioService::Stub> stub_ = v1::RatioService::NewStub(channel_);
  int64_t resident_at_start_ = 0;
  std::atomic<bool> stop_ = false;
  std::array<std::atomic<int>, 17> acks_{};
  std::mutex mutex_;
  std::map<std::string, uint32_t> acked_;  // sequence -> positions; guarded by mutex_
};

TEST_F(OverloadTest, StaysWithinTheBudgetAndLosesNothingInSilence) {
  std::vector<std::thread> workers;
  for (int worker = 0; worker < kWorkers; ++worker) {
    workers.emplace_back([this, worker] { Work(worker); });
  }
  std::vector<std::thread> others;
  for (uint32_t reader = 0; reader < kReaders; ++reader) {
    others.emplace_back([this, reader] { ReadSlowly(reader); });
  }
  int64_t most = 0;
  others.emplace_back([&] {
    while (!stop_) {
      most = std::max(most, server_.resident_bytes());
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  for (std::thread& thread : workers) thread.join();
  stop_ = true;
  for (std::thread& thread : others) thread.join();
  EXPECT_LE(most - resident_at_start_, kBudget + kOnTop);
  EXPECT_GT(acks_[0], kWorkers * kSequencesPerWorker * 3) << "few appends came through";

  int64_t acked_positions = 0;
  int64_t present = 0;
  for (const auto& [id, acked] : acked_) {
    acked_positions += acked;
    present += Verify(id, acked);
  }
  EXPECT_LT(present, acked_positions) << "more was offered than there was room for";
  EXPECT_GT(present * kBytesPerToken, kBudget / 4) << "the cache was used";

  // After all that the server works like a new one.
  v1::CreateRunRequest again;
  again.set_run_id("run");
  again.set_incarnation(2);
  again.mutable_config()->set_top_k(kTopK);
  again.mutable_config()->set_vocabulary_size(kVocabulary);
  again.mutable_config()->set_log_prob_encoding(v1::LOG_PROB_ENCODING_FLOAT32);
  grpc::ClientContext context;
  v1::CreateRunResponse created;
  EXPECT_TRUE(stub_->CreateRun(&context, again, &created).ok());
  grpc::ClientContext get_context;
  v1::GetRunRequest get;
  get.set_run_id("run");
  v1::GetRunResponse got;
  EXPECT_TRUE(stub_->GetRun(&get_context, get, &got).ok());
  EXPECT_EQ(got.run().bytes(), 0);
  acked_.clear();
  std::thread([this] { Work(0); }).join();
  EXPECT_FALSE(acked_.empty());
  server_.Signal(SIGTERM);
  EXPECT_EQ(server_.Wait(), 0);
  RecordProperty("resident_above_start_mib", static_cast<int>((most - resident_at_start_) >> 20));
  RecordProperty("refused_for_room", acks_[grpc::StatusCode::RESOURCE_EXHAUSTED]);
}

}  // namespace
}  // namespace sis
