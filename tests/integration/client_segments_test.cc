// The C++ client's FetchTopK into shared memory, and Append from it: the same as over the wire, in
// memory that is used again when nobody has it.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/api/client.h"
#include "server/testing/live_server.h"
#include "server/testing/record_generator.h"
#include "tests/integration/same_records.h"

namespace sis {
namespace {

constexpr int kSlots = 10;
constexpr int kVocabulary = 1000;
constexpr uint32_t kLengths[] = {192, 100, 1, 64};
constexpr size_t kBytes = 1 << 20;
const RunRef kRun{"run"};

class ClientSegmentsTest : public testing::Test {
 protected:
  ClientSegmentsTest() : live_(LiveServer::SharedMemoryOptions(4 * kBytes)) {
    live_.CreateRun(LiveServer::RunRequest(kRun.run_id, kSlots, kVocabulary));
    auto client = Client::Connect(live_.grpc_address());
    EXPECT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    memory_ = *client_->LeaseSharedMemory(kBytes);
    for (const uint32_t length : kLengths) {
      slices_.push_back({{absl::StrCat("s", slices_.size())}, 0, length});
      records_.push_back(generator_.NextRecords(length));
    }
  }

  std::unique_ptr<AppendWriter> Stream(const AppendOptions& options = {}) {
    v1::Sampling sampling;
    sampling.set_log_probs(v1::Sampling::RAW);
    sampling.set_temperature(1);
    return client_->Append(kRun, sampling, kVocabulary, options);
  }
  // Appends all sequences, without shared memory.
  void AppendAll() {
    const auto stream = Stream();
    for (size_t i = 0; i < slices_.size(); ++i) {
      const v1::Block block = records_[i].Block("", 0, 0, 0, kLengths[i]);
      const auto sampled_ids = Values<int32_t>(block.sampled_ids());
      const auto sampled = Values<float>(block.sampled_log_probs());
      const auto ids = Values<int32_t>(block.top_k_ids());
      const auto log_probs = Values<float>(block.top_k_log_probs());
      ASSERT_TRUE(
          stream->Block(slices_[i].sequence, 0, 0, {sampled_ids, sampled, ids, log_probs}).ok());
    }
    ASSERT_TRUE(stream->Finish()->empty());
  }
  // A block's arrays in shared memory.
  RecordView InMemory(SharedMemory& memory, const v1::Block& block) {
    return {Put<int32_t>(memory, block.sampled_ids()),
            Put<float>(memory, block.sampled_log_probs()), Put<int32_t>(memory, block.top_k_ids()),
            Put<float>(memory, block.top_k_log_probs())};
  }
  template <typename T>
  static std::span<T> Put(SharedMemory& memory, const std::string& array) {
    const std::vector<T> values = Values<T>(array);
    const absl::StatusOr<std::span<T>> part = memory.Allocate<T>(values.size());
    EXPECT_TRUE(part.ok()) << part.status();
    std::ranges::copy(values, part->begin());
    return *part;
  }
  static bool LiesIn(SharedMemory& memory, std::span<const std::byte> bytes) {
    const std::span<const std::byte> all = memory.memory().bytes();
    return bytes.data() >= all.data() && bytes.data() + bytes.size() <= all.data() + all.size();
  }

  RecordGenerator generator_{kSlots, kVocabulary, 11};
  LiveServer live_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<SharedMemory> memory_;
  std::vector<Slice> slices_;
  std::vector<Records> records_;
};

TEST_F(ClientSegmentsTest, RecordsComeIntoItAsOverTheWire) {
  AppendAll();
  std::vector<Slice> asked = slices_;
  asked[0] = {slices_[0].sequence, 7, 250};  // beyond its end
  asked.push_back({{"none"}, 0, 5});
  asked.push_back({{"none"}});
  asked.push_back(slices_[3]);
  asked.back().length = 0;
  const auto expected = client_->FetchTopK(kRun, asked);
  ASSERT_TRUE(expected.ok()) << expected.status();
  ASSERT_EQ(expected->missing.size(), 3);
  const auto got =
      client_->FetchTopK(kRun, asked, {.lease = absl::Seconds(60), .memory = memory_.get()});
  ASSERT_TRUE(got.ok()) << got.status();
  ExpectSameRecords(*got, *expected);
  EXPECT_GT(got->lease_id, 0);
  for (const std::span<const std::byte> array :
       {std::as_bytes(got->sampled_ids), std::as_bytes(got->sampled_log_probs),
        std::as_bytes(got->ids), std::as_bytes(got->log_probs)}) {
    EXPECT_TRUE(LiesIn(*memory_, array));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(array.data()) % 64, 0);
  }
  EXPECT_EQ(client_->FetchTopK(kRun, {}, {.memory = memory_.get()}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ClientSegmentsTest, SomeArraysAlone) {
  AppendAll();
  const auto all = client_->FetchTopK(kRun, slices_);
  ASSERT_TRUE(all.ok()) << all.status();
  for (SharedMemory* memory : {static_cast<SharedMemory*>(nullptr), memory_.get()}) {
    for (int mask = 1; mask < 16; ++mask) {
      FetchOptions options{.memory = memory};
      for (int i = 0; i < 4; ++i) {
        if (mask >> i & 1) options.arrays.push_back(static_cast<v1::RecordArray>(4 - i));
      }
      TopKRecords expected = *all;
      if ((mask & 8) == 0) expected.sampled_ids = {};
      if ((mask & 4) == 0) expected.sampled_log_probs = {};
      if ((mask & 2) == 0) expected.ids = {};
      if ((mask & 1) == 0) expected.log_probs = {};
      const auto got = client_->FetchTopK(kRun, slices_, options);
      ASSERT_TRUE(got.ok()) << got.status();
      ExpectSameRecords(*got, expected);
      EXPECT_EQ(got->positions(), all->positions());
    }
    const FetchOptions wrong{.arrays = {v1::RECORD_ARRAY_UNSPECIFIED}, .memory = memory};
    EXPECT_EQ(client_->FetchTopK(kRun, slices_, wrong).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(ClientSegmentsTest, TheirMemoryIsUsedAgainWhenTheLastCopyHasGone) {
  AppendAll();
  const auto expected = client_->FetchTopK(kRun, slices_);
  ASSERT_TRUE(memory_->Allocate<char>(1000).ok());
  auto fetched = client_->FetchTopK(kRun, slices_, {.memory = memory_.get()});
  ASSERT_TRUE(fetched.ok()) << fetched.status();
  TopKRecords records = *fetched;
  fetched = absl::UnknownError("gone");
  // What is behind them is free, and nothing else.
  const auto rest = memory_->Allocate<char>(kBytes - (64 << 10));
  ASSERT_TRUE(rest.ok()) << rest.status();
  std::ranges::fill(*rest, 'x');
  memory_->Reset();
  ExpectSameRecords(records, *expected);
  EXPECT_EQ(memory_->Allocate<char>(kBytes).status().code(), absl::StatusCode::kResourceExhausted);
  records = TopKRecords();
  EXPECT_TRUE(memory_->Allocate<char>(kBytes).ok());
  EXPECT_EQ(client_->FetchTopK(kRun, slices_, {.memory = memory_.get()}).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(ClientSegmentsTest, TooLittleMemoryIsSaidAndGivenBack) {
  AppendAll();
  const auto small = client_->LeaseSharedMemory(4096);
  ASSERT_TRUE(small.ok()) << small.status();
  const absl::Status status = client_->FetchTopK(kRun, slices_, {.memory = small->get()}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "are needed")) << status;
  EXPECT_TRUE((*small)->Allocate<char>(4096).ok());
}

TEST_F(ClientSegmentsTest, RecordsOutliveTheLease) {
  AppendAll();
  const auto expected = client_->FetchTopK(kRun, slices_);
  const auto got = client_->FetchTopK(kRun, slices_, {.memory = memory_.get()});
  ASSERT_TRUE(got.ok()) << got.status();
  memory_.reset();
  ExpectSameRecords(*got, *expected);
  // Over the wire now, as any other array.
  EXPECT_TRUE(client_
                  ->Evaluate(kRun, got->slices,
                             GatheredValues{got->log_probs, got->sampled_log_probs}, {.draw = 1})
                  .ok());
}

TEST_F(ClientSegmentsTest, ALeaseThatTheServerHasEndedIsNotFound) {
  AppendAll();
  // Of another server.
  LiveServer other(LiveServer::SharedMemoryOptions());
  const auto client = Client::Connect(other.grpc_address());
  const auto memory = (*client)->LeaseSharedMemory(kBytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(client_->FetchTopK(kRun, slices_, {.memory = memory->get()}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_TRUE((*memory)->Allocate<char>(kBytes).ok());
}

TEST_F(ClientSegmentsTest, AbandonedMemoryIsNotUsedAgain) {
  AppendAll();
  auto client = Client::Connect(live_.grpc_address(), {.call_timeout = -absl::Seconds(1)});
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ((*client)->FetchTopK(kRun, slices_, {.memory = memory_.get()}).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(memory_->Allocate<char>(1).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(ClientSegmentsTest, ManyThreadsFetchAndLetGo) {
  AppendAll();
  const auto expected = client_->FetchTopK(kRun, slices_);
  std::vector<std::thread> threads;
  std::mutex mutex;
  int fetched = 0;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 30; ++round) {
        const auto records = client_->FetchTopK(kRun, slices_, {.memory = memory_.get()});
        if (!records.ok()) continue;  // another holds what is free
        const std::lock_guard lock(mutex);
        ExpectSameRecords(*records, *expected);
        ++fetched;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(fetched, 0);
  EXPECT_TRUE(memory_->Allocate<char>(kBytes).ok());
}

TEST_F(ClientSegmentsTest, BlocksAreAppendedFromItAsFromAnywhere) {
  // In turn from shared memory, from another piece of it, from anywhere, and half there.
  const auto other = client_->LeaseSharedMemory(kBytes);
  ASSERT_TRUE(other.ok()) << other.status();
  const auto stream = Stream({.batch_bytes = 4 << 10});
  std::vector<v1::Block> blocks;
  for (size_t i = 0; i < slices_.size(); ++i) {
    for (uint32_t first = 0; first < kLengths[i]; first += 16) {
      const uint32_t count = std::min<uint32_t>(16, kLengths[i] - first);
      const v1::Block block = records_[i].Block("", first, 0, first, count);
      const auto sampled_ids = Values<int32_t>(block.sampled_ids());
      const auto sampled = Values<float>(block.sampled_log_probs());
      const auto ids = Values<int32_t>(block.top_k_ids());
      const auto log_probs = Values<float>(block.top_k_log_probs());
      RecordView view{sampled_ids, sampled, ids, log_probs};
      const size_t turn = blocks.size() % 5;
      if (turn == 0 || turn == 1) view = InMemory(*memory_, block);
      if (turn == 2) view = InMemory(**other, block);
      if (turn == 3) view.ids = Put<int32_t>(*memory_, block.top_k_ids());
      ASSERT_TRUE(stream->Block(slices_[i].sequence, first, 0, view).ok());
      blocks.push_back(block);
    }
    ASSERT_TRUE(stream->Seal(slices_[i].sequence, kLengths[i]).ok());
  }
  const auto refused = stream->Finish();
  ASSERT_TRUE(refused.ok()) << refused.status();
  for (const RefusedEntry& entry : *refused) ADD_FAILURE() << entry.status;
  const auto got = client_->FetchTopK(kRun, slices_);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(got->missing.empty());
  std::string ids, log_probs, sampled_ids, sampled;
  for (const v1::Block& block : blocks) {
    ids += block.top_k_ids();
    log_probs += block.top_k_log_probs();
    sampled_ids += block.sampled_ids();
    sampled += block.sampled_log_probs();
  }
  EXPECT_EQ(BytesOf(got->ids), ids);
  EXPECT_EQ(BytesOf(got->log_probs), log_probs);
  EXPECT_EQ(BytesOf(got->sampled_ids), sampled_ids);
  EXPECT_EQ(BytesOf(got->sampled_log_probs), sampled);
}

// As an engine writes them: arrays for all sequences, of which blocks are rows that begin anywhere.
TEST_F(ClientSegmentsTest, RowsThatAreWrittenInPlaceDoNotTravel) {
  ServerOptions options = LiveServer::SharedMemoryOptions(kBytes);
  options.max_message_bytes = 4 << 10;
  LiveServer live(options);
  live.CreateRun(LiveServer::RunRequest(kRun.run_id, kSlots, kVocabulary));
  const auto client = *Client::Connect(live.grpc_address());
  const auto memory = *client->LeaseSharedMemory(kBytes);
  v1::Sampling sampling;
  sampling.set_log_probs(v1::Sampling::RAW);
  sampling.set_temperature(1);
  // Of their own memory they are too large for a message.
  {
    const auto stream = client->Append(kRun, sampling, kVocabulary);
    ASSERT_TRUE(stream->Block(slices_[0].sequence, 0, 0, records_[0].View()).ok());
    EXPECT_EQ(stream->Finish().status().code(), absl::StatusCode::kResourceExhausted);
  }
  size_t rows = 0;
  for (const uint32_t length : kLengths) rows += length;
  const auto sampled_ids = memory->Allocate<int32_t>(rows)->begin();
  const auto sampled = memory->Allocate<float>(rows)->begin();
  const auto ids = memory->Allocate<int32_t>(rows * kSlots)->begin();
  const auto log_probs = memory->Allocate<float>(rows * kSlots)->begin();
  std::vector<AppendEntry> entries;
  size_t row = 0;
  for (size_t i = 0; i < slices_.size(); ++i) {
    const RecordView of = records_[i].View();
    const size_t length = kLengths[i];
    std::ranges::copy(of.sampled_ids, sampled_ids + row);
    std::ranges::copy(of.sampled_log_probs, sampled + row);
    std::ranges::copy(of.ids, ids + row * kSlots);
    std::ranges::copy(of.log_probs, log_probs + row * kSlots);
    entries.push_back(BlockEntry{slices_[i].sequence,
                                 0,
                                 0,
                                 {{sampled_ids + row, length},
                                  {sampled + row, length},
                                  {ids + row * kSlots, length * kSlots},
                                  {log_probs + row * kSlots, length * kSlots}}});
    entries.push_back(SealEntry{slices_[i].sequence, kLengths[i]});
    row += length;
  }
  const auto stream = client->Append(kRun, sampling, kVocabulary);
  ASSERT_TRUE(stream->AppendMany(entries).ok());
  const auto refused = stream->Finish();
  ASSERT_TRUE(refused.ok()) << refused.status();
  for (const RefusedEntry& entry : *refused) ADD_FAILURE() << entry.status;
  AppendAll();
  const auto expected = client_->FetchTopK(kRun, slices_);
  const auto got = client->FetchTopK(kRun, slices_, {.memory = memory.get()});
  ASSERT_TRUE(got.ok()) << got.status();
  ExpectSameRecords(*got, *expected);
}

TEST_F(ClientSegmentsTest, ArraysThatAreWrittenBeforeTheyAreAckedAreRefused) {
  const v1::Block block = records_[0].Block("", 0, 0, 0, 64);
  const RecordView view = InMemory(*memory_, block);
  const auto sampled = const_cast<float*>(view.sampled_log_probs.data());
  // Writes to them between the call and the message.
  class Meddler final : public AppendWriter {
   public:
    Meddler(AppendWriter& writer, float* value, std::shared_ptr<const MappedSegments> segments)
        : AppendWriter(std::move(segments), {.batch_bytes = 1}), writer_(writer), value_(value) {}
    absl::Status Put(std::vector<OutgoingEntry>& entries) override {
      EXPECT_FALSE(entries[0].segment.empty());
      *value_ = -0.5f;
      return writer_.Put(entries);
    }
    absl::StatusOr<std::vector<RefusedEntry>> Flush() override { return writer_.Flush(); }
    absl::StatusOr<std::vector<RefusedEntry>> Finish() override { return writer_.Finish(); }

   private:
    AppendWriter& writer_;
    float* const value_;
  };
  const auto segments = std::make_shared<MappedSegments>();
  segments->Add(memory_->memory().bytes(), memory_->segment(), 1);
  const std::unique_ptr<AppendWriter> writer = Stream();
  Meddler meddler(*writer, sampled + 5, segments);
  ASSERT_TRUE(meddler.Block(slices_[0].sequence, 0, 0, view).ok());
  const auto refused = meddler.Finish();
  ASSERT_TRUE(refused.ok()) << refused.status();
  ASSERT_EQ(refused->size(), 1);
  EXPECT_EQ((*refused)[0].status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains((*refused)[0].status.message(), "crc32c"));
}

}  // namespace
}  // namespace sis
