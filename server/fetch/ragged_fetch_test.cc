// Ragged FetchTopK: the padded one without its unused slots, whatever blocks hold the records.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>
#include <utility>

#include "server/fetch/fetch.h"
#include "server/testing/cache_fixture.h"
#include "server/testing/record_generator.h"

namespace sis {
namespace {

constexpr uint32_t kSlots = 7;

template <typename T>
std::vector<T> Values(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// Of [N, K] arrays the first counts[i] of each row.
std::string Used(const std::string& rows, const std::vector<uint16_t>& counts) {
  std::string used;
  for (size_t i = 0; i < counts.size() && !rows.empty(); ++i) {
    used += rows.substr(i * kSlots * 4, counts[i] * size_t{4});
  }
  return used;
}

// Parameters: mass and encoding.
class RaggedFetchTest : public testing::TestWithParam<std::tuple<double, v1::LogProbEncoding>> {
 protected:
  RaggedFetchTest() {
    v1::RunConfig config = SmallConfig(kSlots);
    config.set_mass(std::get<0>(GetParam()));
    config.set_log_prob_encoding(std::get<1>(GetParam()));
    config.set_max_staleness(0);
    run_ = cache_.CreateRun("r", config);
    // Several blocks, a gap, stale positions, and what never came.
    Append("a", 0, 25000, 3);
    Append("a", 25100, 400, 2);
    Append("a", 25500, 70, 3);
    Append("b", 3, 5, 3);
    EXPECT_TRUE(run_->AdvanceVersion(3).ok());
    Add("a", 33, 0);
    Add("never", 0, 7);
    Add("empty", 0, 0);
    Add("b", 0, 9);
    Add("a", 50, 3);
  }
  void Append(const std::string& id, uint32_t first, uint32_t count, uint64_t version) {
    const v1::Block block = generator_.NextRecords(count).Block(id, first, version, 0, count);
    EXPECT_EQ(AppendBlock(cache_, *run_, block).code(), 0);
  }
  void Add(const std::string& id, uint32_t first, uint32_t length) {
    v1::Slice& slice = *request_.add_slices();
    slice.mutable_sequence()->set_id(id);
    slice.set_first_position(first);
    slice.set_length(length);
  }
  // The rows of all chunks.
  v1::FetchTopKChunk Rows(const v1::FetchTopKRequest& request, std::string& header) {
    absl::StatusOr<Fetch> fetch = Fetch::Open(run_, request);
    EXPECT_TRUE(fetch.ok()) << fetch.status();
    v1::FetchTopKResponse message;
    if (!fetch.ok() || !fetch->Next(message)) return {};
    header = message.header().SerializeAsString();
    return RowsOf(*fetch);
  }
  v1::FetchTopKChunk RowsOf(Fetch& fetch) {
    v1::FetchTopKChunk rows;
    v1::FetchTopKResponse message;
    chunks_ = 0;
    while (fetch.Next(message)) {
      ++chunks_;
      EXPECT_LE(message.ByteSizeLong(), (1 << 20) + 1000);
      const v1::FetchTopKChunk& chunk = message.chunk();
      rows.set_length(rows.length() + chunk.length());
      *rows.mutable_sampled_ids() += chunk.sampled_ids();
      *rows.mutable_sampled_log_probs() += chunk.sampled_log_probs();
      *rows.mutable_top_k_counts() += chunk.top_k_counts();
      *rows.mutable_top_k_ids() += chunk.top_k_ids();
      *rows.mutable_top_k_log_probs() += chunk.top_k_log_probs();
    }
    return rows;
  }
  // What it must be.
  v1::FetchTopKChunk Expected(std::string& header) {
    request_.set_ragged(false);
    const std::vector<uint16_t>& counts = Counts();
    v1::FetchTopKChunk expected = Rows(request_, header);
    if (!expected.top_k_ids().empty() || !expected.top_k_log_probs().empty()) {
      expected.set_top_k_counts(Bytes(counts));
    }
    expected.set_top_k_ids(Used(expected.top_k_ids(), counts));
    expected.set_top_k_log_probs(Used(expected.top_k_log_probs(), counts));
    request_.set_ragged(true);
    return expected;
  }
  // The used slots of each position, by the padded rows when it is asked first.
  const std::vector<uint16_t>& Counts() {
    if (!counts_.empty()) return counts_;
    v1::FetchTopKRequest all = request_;
    all.clear_arrays();
    std::string header;
    const v1::FetchTopKChunk padded = Rows(all, header);
    EXPECT_EQ(padded.top_k_counts(), "");
    const std::vector<int32_t> ids = Values<int32_t>(padded.top_k_ids());
    for (size_t i = 0; i < ids.size(); i += kSlots) {
      uint16_t count = 0;
      while (count < kSlots && ids[i + count] != -1) ++count;
      counts_.push_back(count);
    }
    return counts_;
  }
  static void ExpectRows(const v1::FetchTopKChunk& got, const v1::FetchTopKChunk& expected) {
    EXPECT_EQ(got.length(), expected.length());
    EXPECT_TRUE(got.sampled_ids() == expected.sampled_ids());
    EXPECT_TRUE(got.sampled_log_probs() == expected.sampled_log_probs());
    EXPECT_TRUE(got.top_k_counts() == expected.top_k_counts());
    EXPECT_TRUE(got.top_k_ids() == expected.top_k_ids());
    EXPECT_TRUE(got.top_k_log_probs() == expected.top_k_log_probs());
  }

  Cache cache_;
  std::shared_ptr<sis::Run> run_;
  RecordGenerator generator_{kSlots, 1000, 31};
  v1::FetchTopKRequest request_;
  std::vector<uint16_t> counts_;
  int chunks_ = 0;
};

TEST_P(RaggedFetchTest, IsThePaddedOneWithoutUnusedSlots) {
  for (const bool spans : {true, false}) {
    request_.set_chunks_span_slices(spans);
    std::string header, ragged_header;
    const v1::FetchTopKChunk expected = Expected(header);
    const v1::FetchTopKChunk ragged = Rows(request_, ragged_header);
    EXPECT_EQ(ragged_header, header);
    EXPECT_GT(chunks_, 1);
    ExpectRows(ragged, expected);
    const std::vector<uint16_t> counts = Values<uint16_t>(expected.top_k_counts());
    EXPECT_THAT(counts, testing::Contains(0));
    EXPECT_THAT(counts, testing::Contains(kSlots));
    EXPECT_THAT(counts, testing::Contains(3));
  }
}

TEST_P(RaggedFetchTest, SoItIsOfOneTwoOrAllArrays) {
  for (const int wanted : {1, 6, 9, 15}) {
    request_.clear_arrays();
    for (int i = 0; i < 4; ++i) {
      if (wanted >> i & 1) request_.add_arrays(static_cast<v1::RecordArray>(v1::SAMPLED_IDS + i));
    }
    std::string header, ragged_header;
    const v1::FetchTopKChunk expected = Expected(header);
    ExpectRows(Rows(request_, ragged_header), expected);
  }
}

// Header and rows are of one moment: what comes meanwhile is not there.
TEST_P(RaggedFetchTest, RecordsThatComeMeanwhileAreMissing) {
  std::string header;
  const v1::FetchTopKChunk before = Expected(header);
  absl::StatusOr<Fetch> fetch = Fetch::Open(run_, request_);
  ASSERT_TRUE(fetch.ok()) << fetch.status();
  Append("b", 0, 3, 3);
  Append("a", 25020, 60, 3);
  v1::FetchTopKResponse message;
  ASSERT_TRUE(fetch->Next(message));
  EXPECT_EQ(message.header().SerializeAsString(), header);
  Append("a", 25000, 20, 3);
  ExpectRows(RowsOf(*fetch), before);
}

INSTANTIATE_TEST_SUITE_P(Runs, RaggedFetchTest,
                         testing::Combine(testing::Values(0.0, 0.9),
                                          testing::Values(v1::FLOAT32, v1::FIXED16)));

}  // namespace
}  // namespace sis
