// Evaluate over a backend that keeps copies of blocks, on the host as on a device: whatever happens
// to the blocks, answers are those of the scalar backend, which keeps none.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>
#include <thread>

#include "kernels/cuda/testing/host_stage.h"
#include "kernels/decide/scalar_backend.h"
#include "server/messages/arrays.h"
#include "server/testing/cache_fixture.h"
#include "server/testing/evaluate_at_once.h"
#include "server/testing/record_generator.h"

namespace sis {
namespace {

constexpr int kSlots = 4;
constexpr uint32_t kLength = 300;
constexpr uint32_t kBlocks = 5;                  // of a sequence
constexpr size_t kChunkBytes = size_t{8} << 10;  // about 20 pages in float16
constexpr size_t kRoomForAll = 64;
constexpr size_t kRoomForFew = 2;

std::unique_ptr<const Backend> Device(size_t chunks, cuda::When when = cuda::When::kLate) {
  return cuda::BackendOnHostStages(std::make_unique<ScalarBackend>(), chunks, kChunkBytes, when);
}

class DeviceCacheTest : public testing::TestWithParam<v1::LogProbEncoding> {
 protected:
  DeviceCacheTest() {
    v1::RunConfig config = SmallConfig(kSlots);
    config.set_log_prob_encoding(GetParam());
    run_ = cache_.CreateRun("r", config);
  }

  // Versions change where blocks end, for them to stay apart.
  void Append(const std::string& id, const Records& records, uint32_t first, uint32_t count) {
    constexpr uint32_t kPositions = kLength / kBlocks;
    for (const uint32_t end = first + count; first < end;) {
      const uint32_t version = first / kPositions;
      const uint32_t next = std::min(end, (version + 1) * kPositions);
      const v1::Ack ack =
          AppendBlock(cache_, *run_, records.Block(id, first, version, first, next - first));
      ASSERT_EQ(ack.code(), 0) << ack.message();
      first = next;
    }
  }
  void Seal(const std::string& id, uint32_t length) {
    v1::AppendEntry entry;
    entry.mutable_sequence()->set_id(id);
    entry.mutable_seal()->set_length(length);
    ASSERT_EQ(IngestEntry(cache_, *run_, entry).code(), 0);
  }

  // Values that are valid whatever is recorded.
  v1::EvaluateRequest Request(const std::string& id, uint32_t first, uint32_t count,
                              uint64_t draw) {
    v1::EvaluateRequest request;
    request.set_draw(draw);
    v1::Slice& slice = *request.add_slices();
    slice.mutable_sequence()->set_id(id);
    slice.set_first_position(first);
    slice.set_length(count);
    v1::Gathered& gathered = *request.mutable_gathered();
    gathered.set_counts(CountsOf(id, first, count));
    const size_t values =
        std::accumulate(gathered.counts().begin(), gathered.counts().end(), size_t{0});
    for (auto& log_prob : ResizeArray<float>(*gathered.mutable_log_probs(), values)) {
      log_prob = NextLogProb(draw);
    }
    for (auto& sampled : ResizeArray<float>(*gathered.mutable_sampled_log_probs(), count)) {
      sampled = NextLogProb(draw);
    }
    request.add_outputs(v1::OUTPUT_DECISIONS);
    request.add_outputs(v1::OUTPUT_ACCEPTANCE_PROBABILITIES);
    return request;
  }
  // The used slots at each position, 0 where nothing is recorded.
  std::string CountsOf(const std::string& id, uint32_t first, uint32_t count) {
    std::string counts(count, '\0');
    const Run::Found found = run_->Find({id, 0});
    const auto* sequence = std::get_if<std::shared_ptr<Sequence>>(&found);
    if (sequence == nullptr) return counts;
    const Sequence::Reader reader(**sequence);
    reader.ForEachPiece(first, count, [&](const Sequence::Reader::Piece& piece) {
      if (piece.block == nullptr) return;
      std::copy_n(piece.block->view().counts + piece.index, piece.count,
                  counts.begin() + (piece.first_position - first));
    });
    return counts;
  }
  float NextLogProb(uint64_t draw) {
    return -1.5f - static_cast<float>((37 * value_++ + draw) % 97) / 31;
  }
  std::string AnswerOf(const Backend& backend, const v1::EvaluateRequest& request) {
    auto response = EvaluateAtOnce(*run_, backend, request);
    EXPECT_TRUE(response.ok()) << response.status();
    if (!response.ok()) return "";
    response->clear_newly_counted();
    return response->SerializeAsString();
  }
  void ExpectSame(const Backend& device, const v1::EvaluateRequest& request) {
    EXPECT_TRUE(AnswerOf(device, request) == AnswerOf(scalar_, request));
  }

  RecordGenerator generator_{kSlots, 1000, 71};
  uint64_t value_ = 0;
  const ScalarBackend scalar_{};
  // What is looked at closer is evaluated once more, and would be counted.
  Cache cache_{int64_t{64} << 20, Limits{.inspected_bytes = 0}};
  std::shared_ptr<sis::Run> run_;
};

TEST_P(DeviceCacheTest, BlocksAreSentOnce) {
  Append("s", generator_.NextRecords(kLength), 0, kLength);
  const auto device = Device(kRoomForAll);
  for (uint64_t draw = 0; draw < 4; ++draw) ExpectSame(*device, Request("s", 0, kLength, draw));
  const ResidentBlocksStats stats = device->resident_blocks();
  EXPECT_EQ(stats.copies, kBlocks);
  EXPECT_EQ(stats.hits, 3 * stats.copies);
  EXPECT_EQ(stats.passes, 0);
}

TEST_P(DeviceCacheTest, ReducedReadsCopiesButMakesNone) {
  Append("s", generator_.NextRecords(kLength), 0, kLength);
  const auto device = Device(kRoomForAll);
  const v1::EvaluateRequest gathered = Request("s", 0, kLength, 1);
  v1::EvaluateRequest reduced = gathered;
  const std::string sampled = gathered.gathered().sampled_log_probs();
  reduced.mutable_reduced()->set_sampled_log_probs(sampled);
  ResizeArray<float>(*reduced.mutable_reduced()->mutable_log_envelopes(), kLength);
  ResizeArray<float>(*reduced.mutable_reduced()->mutable_covered_masses(), kLength);
  ExpectSame(*device, reduced);
  EXPECT_EQ(device->resident_blocks().copies, 0);
  ExpectSame(*device, gathered);
  ExpectSame(*device, reduced);
  EXPECT_EQ(device->resident_blocks().hits, kBlocks);
}

TEST_P(DeviceCacheTest, ABlockInPiecesIsSentOnce) {
  Append("s", generator_.NextRecords(kLength), 0, kLength);
  const auto device = Device(kRoomForAll);
  v1::EvaluateRequest request = Request("s", 3, kLength - 40, 2);
  for (uint32_t i = 0; i < kLength - 40; ++i) request.mutable_mask()->push_back(i % 3 == 0 ? 1 : 0);
  ExpectSame(*device, request);
  ExpectSame(*device, request);
  EXPECT_EQ(device->resident_blocks().copies, kBlocks);
}

// Evaluations of blocks that stay, side by side with changes of others, over a memory that holds
// few.
TEST_P(DeviceCacheTest, ManyThreads) {
  constexpr int kSequences = 10;
  const auto device = Device(kRoomForFew, cuda::When::kInAThread);
  std::vector<v1::EvaluateRequest> requests;
  std::vector<std::string> expected;
  for (int i = 0; i < kSequences; ++i) {
    const std::string id = "s" + std::to_string(i);
    Append(id, generator_.NextRecords(kLength), 0, kLength);
    requests.push_back(Request(id, 0, kLength, 5));
    expected.push_back(AnswerOf(scalar_, requests.back()));
  }
  const Records changing = generator_.NextRecords(kLength);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      for (int i = 0; i < 60; ++i) {
        // Several threads often want the same blocks.
        const size_t which = random() % 3 == 0 ? 0 : random() % kSequences;
        wrong += AnswerOf(*device, requests[which]) != expected[which];
      }
    });
  }
  for (int i = 0; i < 60; ++i) {
    const std::string id = "changing " + std::to_string(i);
    Append(id, changing, 0, kLength);
    AnswerOf(*device, Request(id, 0, kLength, 6));
    run_->Release({id, 0});
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(device->resident_blocks().hits, 0);
  EXPECT_GT(device->resident_blocks().evictions, 0);
}

INSTANTIATE_TEST_SUITE_P(Encodings, DeviceCacheTest,
                         testing::Values(v1::LOG_PROB_ENCODING_FLOAT32,
                                         v1::LOG_PROB_ENCODING_FIXED16),
                         [](const auto& encoding) {
                           return v1::LogProbEncoding_Name(encoding.param);
                         });

}  // namespace
}  // namespace sis
