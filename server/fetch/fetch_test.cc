#include "server/fetch/fetch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "server/testing/cache_fixture.h"
#include "server/testing/record_generator.h"

namespace sis {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

constexpr int kSlots = 5;

// All messages of a fetch, put together: the header, and per slice what Block would hold.
struct Fetched {
  v1::FetchTopKHeader header;
  std::vector<v1::Block> slices;
  int chunks = 0;
};

void Add(v1::FetchTopKRequest& request, const std::string& id, uint32_t first, uint32_t length) {
  v1::Slice& slice = *request.add_slices();
  slice.mutable_sequence()->set_id(id);
  slice.set_first_position(first);
  slice.set_length(length);
}

class FetchTest : public testing::Test {
 protected:
  Fetched Do(const v1::FetchTopKRequest& request) {
    Fetched fetched;
    absl::StatusOr<Fetch> fetch = Fetch::Open(run_, request);
    EXPECT_TRUE(fetch.ok()) << fetch.status();
    if (fetch.ok()) Read(*fetch, fetched);
    return fetched;
  }
  static void Read(Fetch& fetch, Fetched& fetched) {
    v1::FetchTopKResponse message;
    ASSERT_TRUE(fetch.Next(message));
    ASSERT_TRUE(message.has_header());
    fetched.header = message.header();
    fetched.slices.resize(message.header().slices_size());
    // Where the next row belongs.
    int slice = 0;
    uint32_t row = 0;
    while (fetch.Next(message)) {
      ASSERT_TRUE(message.has_chunk());
      ++fetched.chunks;
      const v1::FetchTopKChunk& chunk = message.chunk();
      const auto skip_full = [&] {
        while (slice < fetched.header.slices_size() &&
               row == fetched.header.slices(slice).length()) {
          ++slice;
          row = 0;
        }
      };
      skip_full();
      ASSERT_LT(slice, fetched.header.slices_size());
      EXPECT_EQ(chunk.slice(), slice);
      EXPECT_EQ(chunk.first_position(), fetched.header.slices(slice).first_position() + row);
      EXPECT_LE(message.ByteSizeLong(), (1 << 20) + 1000);
      for (uint32_t done = 0; done < chunk.length(); skip_full()) {
        ASSERT_LT(slice, fetched.header.slices_size());
        const uint32_t count =
            std::min(chunk.length() - done, fetched.header.slices(slice).length() - row);
        const auto add = [&](const std::string& array, std::string& to) {
          const size_t row_bytes = array.size() / chunk.length();
          to += array.substr(done * row_bytes, count * row_bytes);
        };
        v1::Block& block = fetched.slices[slice];
        add(chunk.sampled_ids(), *block.mutable_sampled_ids());
        add(chunk.sampled_log_probs(), *block.mutable_sampled_log_probs());
        add(chunk.top_k_ids(), *block.mutable_top_k_ids());
        add(chunk.top_k_log_probs(), *block.mutable_top_k_log_probs());
        done += count;
        row += count;
      }
    }
    EXPECT_FALSE(fetch.Next(message));
  }
  static void ExpectRows(const v1::Block& got, const v1::Block& expected) {
    EXPECT_EQ(got.sampled_ids(), expected.sampled_ids());
    EXPECT_EQ(got.sampled_log_probs(), expected.sampled_log_probs());
    EXPECT_EQ(got.top_k_ids(), expected.top_k_ids());
    EXPECT_EQ(got.top_k_log_probs(), expected.top_k_log_probs());
  }
  static std::vector<std::tuple<uint32_t, uint32_t, uint32_t, v1::MissingReason>> Missing(
      const Fetched& fetched) {
    std::vector<std::tuple<uint32_t, uint32_t, uint32_t, v1::MissingReason>> missing;
    for (const v1::MissingRange& range : fetched.header.missing()) {
      missing.emplace_back(range.slice(), range.first_position(), range.length(), range.reason());
    }
    return missing;
  }

  Cache cache_;
  WorkerPool workers_{3};
  std::shared_ptr<sis::Run> run_ = cache_.CreateRun("r", LosslessConfig(kSlots));
  RecordGenerator generator_{kSlots, 1000, 31};
};

TEST_F(FetchTest, LongSlicesComeInChunks) {
  const Records records = generator_.NextRecords(60000);  // 48 bytes each
  ASSERT_EQ(AppendBlock(cache_, *run_, records.Block("a")).code(), 0);
  v1::FetchTopKRequest request;
  Add(request, "a", 0, 0);
  const Fetched fetched = Do(request);
  EXPECT_EQ(fetched.chunks, 3);
  ExpectRows(fetched.slices[0], records.Block("a"));
}

TEST_F(FetchTest, ChunksSpanSlicesForWhoExpectsThem) {
  const Records records = generator_.NextRecords(30000);
  ASSERT_EQ(AppendBlock(cache_, *run_, records.Block("long")).code(), 0);
  v1::FetchTopKRequest request;
  for (int i = 0; i < 70; ++i) {
    const std::string id = absl::StrCat("s", i);
    AppendBlock(cache_, *run_, records.Block(id, 0, 0, i, 1 + i * 7 % 40));
    Add(request, id, 0, 0);
  }
  Add(request, "never", 3, 7);
  Add(request, "empty", 0, 0);
  for (const auto& [more, apart, together] : {std::tuple(0, 71, 1), {3, 77, 5}}) {
    for (int i = 0; i < more; ++i) Add(request, "long", i, 0);
    request.set_chunks_span_slices(false);
    const Fetched expected = Do(request);
    EXPECT_EQ(expected.chunks, apart);
    request.set_chunks_span_slices(true);
    const Fetched fetched = Do(request);
    EXPECT_EQ(fetched.chunks, together);
    EXPECT_EQ(fetched.header.SerializeAsString(), expected.header.SerializeAsString());
    ASSERT_EQ(fetched.slices.size(), expected.slices.size());
    for (size_t i = 0; i < expected.slices.size(); ++i) {
      ExpectRows(fetched.slices[i], expected.slices[i]);
    }
    ExpectRows(fetched.slices[5], records.Block("s5", 0, 0, 5, 36));
  }
}

TEST_F(FetchTest, HoldsNoSequenceLongerThanItsRowsTake) {
  const auto is_held = [&](const char* id) {
    auto sequence = std::get<std::shared_ptr<Sequence>>(run_->Find({id, 0}));
    return sequence.use_count() > 2;  // the run, and this
  };
  for (const char* id : {"a", "b"}) {
    AppendBlock(cache_, *run_, generator_.NextRecords(10).Block(id));
  }
  v1::FetchTopKRequest request;
  for (const char* id : {"a", "b", "a"}) Add(request, id, 0, 0);
  absl::StatusOr<Fetch> fetch = Fetch::Open(run_, request);
  v1::FetchTopKResponse message;
  for (const auto& [a, b] : {std::pair(true, true), {true, true}, {true, false}, {false, false}}) {
    ASSERT_TRUE(fetch->Next(message));
    EXPECT_EQ(is_held("a"), a);
    EXPECT_EQ(is_held("b"), b);
  }
  EXPECT_FALSE(fetch->Next(message));
}

TEST_F(FetchTest, BadRequestsAreRefusedAndKeepNothing) {
  AppendBlock(cache_, *run_, generator_.NextRecords(10).Block("a"));
  const auto refused = [&](const std::string& message, auto change) {
    v1::FetchTopKRequest request;
    Add(request, "a", 0, 0);
    request.set_keep_seconds(5);
    change(request);
    const absl::Status status = Fetch::Open(run_, request).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
    EXPECT_EQ(run_->Describe().kept_sequences, 0) << message;
  };
  refused("slices: none", [](auto& r) { r.clear_slices(); });
  refused("slices[0].sequence.id", [](auto& r) { r.mutable_slices(0)->clear_sequence(); });
  refused("slices[1] of sequence 'b' attempt 0: first_position 4194304 + length 1",
          [](auto& r) { Add(r, "b", 4194304, 1); });
  refused("slices[1]", [](auto& r) { Add(r, "b", UINT32_MAX, UINT32_MAX); });
  for (const double seconds : {-1.0, 3601.0, double{NAN}, HUGE_VAL}) {
    refused(absl::StrCat("keep_seconds: out of range, got ", seconds, "; must be in [0, 3600]"),
            [&](auto& r) { r.set_keep_seconds(seconds); });
  }
  refused("arrays[0]: 0 is no array", [](auto& r) { r.add_arrays(v1::RECORD_ARRAY_UNSPECIFIED); });
  refused("arrays[1]: 5 is no array", [](auto& r) {
    r.add_arrays(v1::TOP_K_IDS);
    r.add_arrays(static_cast<v1::RecordArray>(5));
  });
  refused("16777220 positions in all", [](auto& r) {
    for (int i = 0; i < 4; ++i) Add(r, "b", 0, 4194304);
    Add(r, "b", 0, 4);
    r.mutable_slices()->DeleteSubrange(0, 1);
  });
}

TEST_F(FetchTest, KeepsItsSequencesWhileItReads) {
  const Records records = generator_.NextRecords(10);
  AppendBlock(cache_, *run_, records.Block("a"));
  v1::FetchTopKRequest request;
  Add(request, "a", 0, 0);
  absl::StatusOr<Fetch> fetch = Fetch::Open(run_, request);
  ASSERT_TRUE(fetch.ok());
  EXPECT_FALSE(run_->EvictOldest());
  run_->Release({"a", 0});
  Fetched fetched;
  Read(*fetch, fetched);
  ExpectRows(fetched.slices[0], records.Block("a"));
}

}  // namespace
}  // namespace sis
