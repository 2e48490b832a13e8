// Columns in the chunks of a FetchTopK.
#include "server/fetch/wanted_columns.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "server/fetch/fetch.h"
#include "server/testing/cache_fixture.h"
#include "server/testing/record_generator.h"

namespace sis {
namespace {

constexpr int kSlots = 3;
constexpr uint32_t kCount = 2000;

v1::RunConfig Config() {
  v1::RunConfig config = LosslessConfig(kSlots);
  config.set_max_staleness(0);
  v1::Column& experts = *config.add_columns();
  experts.set_name("experts");
  experts.set_bytes(1000);
  v1::Column& mask = *config.add_columns();
  mask.set_name("mask");
  mask.set_bytes(1);
  return config;
}

std::string Values(uint32_t width, uint32_t positions, int seed) {
  std::string values(size_t{width} * positions, '\0');
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<char>(seed + 7 * i + i / 251);
  return values;
}

class WantedColumnsTest : public testing::Test {
 protected:
  // The rows of all slices, of `experts`, `mask`, and what is there of each.
  std::array<std::string, 4> Fetch(v1::FetchTopKRequest request) {
    request.add_columns("experts");
    request.add_columns("mask");
    request.add_arrays(v1::SAMPLED_IDS);
    request.set_chunks_span_slices(true);
    absl::StatusOr<sis::Fetch> fetch = sis::Fetch::Open(run_, request);
    EXPECT_TRUE(fetch.ok()) << fetch.status();
    v1::FetchTopKResponse message;
    EXPECT_TRUE(fetch->Next(message));
    std::array<std::string, 4> rows;
    while (fetch->Next(message)) {
      ++chunks_;
      EXPECT_LE(message.ByteSizeLong(), (1 << 20) + 1000);
      EXPECT_EQ(message.chunk().columns_size(), 2);
      for (int i = 0; i < 2; ++i) {
        rows[i] += message.chunk().columns(i);
        rows[2 + i] += message.chunk().column_presence(i);
      }
    }
    return rows;
  }

  Cache cache_;
  std::shared_ptr<sis::Run> run_ = cache_.CreateRun("r", Config());
  const Records records_ = RecordGenerator(kSlots, 1000, 31).NextRecords(kCount);
  int chunks_ = 0;
};

TEST_F(WantedColumnsTest, ChunksHoldThemUntilTheirRecordsAreStale) {
  v1::Block old = records_.Block("a", 0, /*policy_version=*/0, 0, kCount / 2);
  v1::Block young = records_.Block("a", kCount / 2, 1, kCount / 2, kCount / 2);
  const std::string experts = Values(1000, kCount, 1), mask = Values(1, kCount / 2, 2);
  old.add_columns(experts.substr(0, experts.size() / 2));
  young.add_columns(experts.substr(experts.size() / 2));
  young.add_columns(mask);
  ASSERT_EQ(AppendBlock(cache_, *run_, old).code(), 0);
  ASSERT_EQ(AppendBlock(cache_, *run_, young).code(), 0);
  v1::FetchTopKRequest request;
  request.add_slices()->mutable_sequence()->set_id("a");
  request.mutable_slices(0)->set_length(kCount);
  request.add_slices()->mutable_sequence()->set_id("lost");
  request.mutable_slices(1)->set_length(3);
  const std::string none(kCount / 2, '\0'), all(kCount / 2, '\1'), lost(3, '\0');
  for (const bool stale : {false, true}) {
    chunks_ = 0;
    const std::array<std::string, 4> rows = Fetch(request);
    EXPECT_GE(chunks_, 2);
    const std::string zeros(experts.size() / 2, '\0'), lost_experts(3000, '\0');
    const std::string first = stale ? zeros : experts.substr(0, experts.size() / 2);
    EXPECT_TRUE(rows[0] == first + experts.substr(experts.size() / 2) + lost_experts);
    EXPECT_EQ(rows[2], (stale ? none : all) + all + lost);
    EXPECT_EQ(rows[1], none + mask + lost);
    EXPECT_EQ(rows[3], none + all + lost);
    ASSERT_TRUE(run_->AdvanceVersion(1).ok());
  }
}

}  // namespace
}  // namespace sis
