// Appends whose arrays lie in shared memory: what is in a segment means what it would mean in the
// message, and a client that does anything wrong with it harms only its own entries.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/testing/live_server.h"
#include "server/testing/record_generator.h"
#include "tests/integration/leased_segment.h"

namespace sis {
namespace {

constexpr int kTopK = 5;
constexpr int kVocabulary = 100;

class AppendSegmentsTest : public testing::Test {
 protected:
  AppendSegmentsTest() : live_(LiveServer::SharedMemoryOptions()), segment_(live_.stub(), 1 << 20) {
    EXPECT_TRUE(segment_.status().ok()) << segment_.status().error_message();
    v1::CreateRunRequest run = LiveServer::RunRequest("run", kTopK, kVocabulary);
    run.mutable_config()->set_log_prob_encoding(v1::FLOAT32);
    live_.CreateRun(run);
  }

  // The blocks with their arrays in the segment.
  v1::AppendRequest InSegment(std::vector<v1::Block> blocks) {
    v1::AppendRequest request;
    for (v1::Block& block : blocks) {
      segment_.PutArrays(block);
      *request.mutable_batch()->add_entries()->mutable_block() = std::move(block);
    }
    request.mutable_batch()->set_segment(segment_.name());
    return request;
  }
  std::vector<v1::Ack> Append(const v1::AppendRequest& request) {
    const auto appended = live_.Append({LiveServer::Header("run", kVocabulary), request});
    EXPECT_TRUE(appended.status.ok()) << appended.status.error_message();
    return {appended.acks.begin(), appended.acks.end()};
  }
  // Whether the block is committed, as it is: then, and only then, a block is taken again.
  bool IsThere(const v1::Block& block) {
    v1::AppendRequest request;
    *request.mutable_batch()->add_entries()->mutable_block() = block;
    v1::GetRunRequest get;
    get.set_run_id("run");
    v1::GetRunResponse before, after;
    grpc::ClientContext first, second;
    EXPECT_TRUE(live_.stub().GetRun(&first, get, &before).ok());
    const bool taken = Append(request).at(0).code() == 0;
    EXPECT_TRUE(live_.stub().GetRun(&second, get, &after).ok());
    return taken && before.run().positions() == after.run().positions();
  }

  RecordGenerator generator_{kTopK, kVocabulary, 11};
  const Records records_ = generator_.NextRecords(300);
  LiveServer live_;
  LeasedSegment segment_;
};

TEST_F(AppendSegmentsTest, TheSameRecordsAsInMessages) {
  const v1::Block first = records_.Block("s", 0, 0, 0, 200);
  const v1::Block second = records_.Block("s", 200, 0, 200, 100);
  const v1::Block other = records_.Block("other", 0, 0, 0, 1);
  const std::vector<v1::Ack> acks = Append(InSegment({first, second, other}));
  ASSERT_EQ(acks.size(), 3);
  for (const v1::Ack& ack : acks) EXPECT_EQ(ack.code(), 0) << ack.message();
  EXPECT_EQ(acks[1].committed_length(), 300);
  for (const v1::Block& block : {first, second, other}) EXPECT_TRUE(IsThere(block));
}

TEST_F(AppendSegmentsTest, ArraysBeginAnywhere) {
  // Each directly behind the one before, the first at an odd byte.
  segment_.PutFrom(1);
  std::vector<v1::Block> blocks;
  for (uint32_t first = 0; first < 300; first += 60) {
    blocks.push_back(records_.Block("s", first, 0, first, 60));
  }
  for (const v1::Ack& ack : Append(InSegment(blocks))) EXPECT_EQ(ack.code(), 0) << ack.message();
  for (const v1::Block& block : blocks) EXPECT_TRUE(IsThere(block));
}

TEST_F(AppendSegmentsTest, AWrongEntryFailsAlone) {
  const v1::Block block = records_.Block("s", 0, 0, 0, 4);
  const v1::Block good = records_.Block("good", 0, 0, 0, 4);
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  const std::pair<std::string, std::string> wrong[] = {
      {SegmentRange{segment_.size() - 15, 16}.ToBytes(), "beyond"},
      {SegmentRange{segment_.size(), 16}.ToBytes(), "beyond"},
      {SegmentRange{kMost - 63, 80}.ToBytes(), "beyond"},
      {SegmentRange{64, kMost}.ToBytes(), "beyond"},
      {SegmentRange{0, 12}.ToBytes(), "12 bytes"},
      {"fifteen bytes..", "16 bytes"},
      {std::string(80, 'x'), "16 bytes"},
  };
  for (const auto& [field, what] : wrong) {
    v1::AppendRequest request = InSegment({block, good});
    request.mutable_batch()->mutable_entries(0)->mutable_block()->set_top_k_log_probs(field);
    const std::vector<v1::Ack> acks = Append(request);
    ASSERT_EQ(acks.size(), 2);
    EXPECT_EQ(acks[0].code(), static_cast<int>(grpc::StatusCode::INVALID_ARGUMENT));
    EXPECT_TRUE(absl::StrContains(acks[0].message(), "top_k_log_probs")) << acks[0].message();
    EXPECT_TRUE(absl::StrContains(acks[0].message(), what)) << acks[0].message();
    EXPECT_EQ(acks[0].committed_length(), 0);
    EXPECT_EQ(acks[1].code(), 0) << acks[1].message();
  }
  EXPECT_TRUE(IsThere(good));
  EXPECT_FALSE(IsThere(block));
}

TEST_F(AppendSegmentsTest, ValuesAreCheckedAsInMessages) {
  v1::Block block = records_.Block("s", 0, 0, 0, 4);
  std::vector<float> log_probs = Values<float>(block.sampled_log_probs());
  log_probs[2] = std::numeric_limits<float>::quiet_NaN();
  block.set_sampled_log_probs(Bytes(log_probs));
  v1::Block wrong_sum = records_.Block("t", 0, 0, 0, 4);
  wrong_sum.set_crc32c(1);
  const std::vector<v1::Ack> acks = Append(InSegment({block, wrong_sum}));
  for (const v1::Ack& ack : acks) {
    EXPECT_EQ(ack.code(), static_cast<int>(grpc::StatusCode::INVALID_ARGUMENT));
  }
  EXPECT_TRUE(absl::StrContains(acks.at(0).message(), "position 2")) << acks[0].message();
  EXPECT_TRUE(absl::StrContains(acks.at(1).message(), "crc32c")) << acks[1].message();
}

// What has been checked is what is stored, though the arrays change all the time.
TEST_F(AppendSegmentsTest, AClientThatGoesOnWritingStoresNothingUnchecked) {
  v1::Block block = records_.Block("s", 0, 0, 0, 200);
  const std::string good = block.sampled_log_probs();
  const std::string bad = Bytes(std::vector<float>(200, std::numeric_limits<float>::quiet_NaN()));
  v1::AppendRequest request = InSegment({block});
  v1::Block& sent = *request.mutable_batch()->mutable_entries(0)->mutable_block();
  const auto part = SegmentRange::Parse(sent.sampled_log_probs(), segment_.size());
  ASSERT_TRUE(part.ok()) << part.status();
  std::atomic<bool> done = false;
  std::thread writer([&] {
    while (!done) {
      for (const std::string* values : {&bad, &good}) {
        std::memcpy(segment_.memory() + part->offset, values->data(), values->size());
      }
    }
  });
  std::vector<std::string> acked;
  for (int i = 0; i < 600; ++i) {
    sent.mutable_sequence()->set_id(absl::StrCat("s", i));
    const v1::Ack ack = Append(request).at(0);
    if (ack.code() == 0) {
      acked.push_back(sent.sequence().id());
    } else {
      EXPECT_EQ(ack.code(), static_cast<int>(grpc::StatusCode::INVALID_ARGUMENT)) << ack.message();
    }
  }
  done = true;
  writer.join();
  for (const std::string& id : acked) {
    block.mutable_sequence()->set_id(id);
    EXPECT_TRUE(IsThere(block)) << id;
  }
}

TEST_F(AppendSegmentsTest, WithoutTheSegmentNothingIsApplied) {
  const v1::Block block = records_.Block("s", 0, 0, 0, 4);
  v1::AppendRequest request = InSegment({block});
  v1::Seal& seal = *request.mutable_batch()->add_entries()->mutable_seal();
  seal.mutable_sequence()->set_id("sealed");
  seal.set_length(7);
  const v1::AppendRequest probe = InSegment({records_.Block("probe", 0, 0, 0, 1)});
  segment_.End();
  // The server hears of it in its own time.
  while (Append(probe).at(0).code() == 0) std::this_thread::yield();
  for (const v1::Ack& ack : Append(request)) {
    EXPECT_EQ(ack.code(), static_cast<int>(grpc::StatusCode::NOT_FOUND));
    EXPECT_TRUE(absl::StrContains(ack.message(), "segment")) << ack.message();
  }
  EXPECT_FALSE(IsThere(block));
  // The next batch, without a segment, is as good as any.
  v1::AppendRequest in_message;
  *in_message.mutable_batch()->add_entries()->mutable_block() = block;
  EXPECT_EQ(Append(in_message).at(0).code(), 0);
}

}  // namespace
}  // namespace sis
