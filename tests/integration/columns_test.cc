// Columns by the C++ client, over one server and over three: columns_test.py says the same of the
// Python client.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/api/client.h"
#include "client/replicas/placement.h"
#include "server/testing/live_server.h"
#include "server/testing/record_generator.h"

namespace sis {
namespace {

constexpr int kTopK = 3;
constexpr uint32_t kLength = 70;
constexpr int kSequences = 12;
const RunRef kRun{"run"};

v1::RunConfig Config() {
  v1::RunConfig config = LiveServer::RunRequest("run", kTopK, /*vocabulary=*/1000, 3).config();
  v1::Column& experts = *config.add_columns();
  experts.set_name("experts");
  experts.set_bytes(5);
  v1::Column& teacher = *config.add_columns();
  teacher.set_name("teacher");
  teacher.set_bytes(4);
  teacher.set_per_slot(true);
  return config;
}

v1::Sampling Raw() {
  v1::Sampling sampling;
  sampling.set_log_probs(v1::Sampling::RAW);
  sampling.set_temperature(1);
  return sampling;
}

std::vector<std::byte> ValuesOf(int sequence, size_t width) {
  std::vector<std::byte> values(kLength * width);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::byte(7 * sequence + 3 * width + i);
  return values;
}

class ColumnsTest : public testing::TestWithParam<int> {
 protected:
  ColumnsTest() {
    for (int i = 0; i < GetParam(); ++i) {
      servers_.push_back(GetParam() == 1
                             ? std::make_unique<LiveServer>(LiveServer::SharedMemoryOptions())
                             : std::make_unique<LiveServer>());
      addresses_.push_back(servers_.back()->grpc_address());
    }
    auto client = Client::Connect(addresses_, {.call_timeout = absl::Seconds(20)});
    EXPECT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    EXPECT_TRUE(client_->CreateRun("run", Config()).ok());
  }
  static bool LiesIn(SharedMemory& memory, std::span<const std::byte> bytes) {
    const std::span<const std::byte> all = memory.memory().bytes();
    return bytes.data() >= all.data() && bytes.data() + bytes.size() <= all.data() + all.size();
  }
  static std::string Name(int sequence) { return absl::StrCat("sequence-", sequence); }

  std::vector<std::unique_ptr<LiveServer>> servers_;
  std::vector<std::string> addresses_;
  std::unique_ptr<Client> client_;
};

TEST_P(ColumnsTest, WhatWasAppendedIsFetched) {
  const Records records = RecordGenerator(kTopK, 1000, 5).NextRecords(kLength);
  const auto stream = client_->Append(kRun, Raw(), 1000);
  std::vector<Slice> slices;
  for (int i = 0; i < kSequences; ++i) {
    const std::vector<std::byte> experts = ValuesOf(i, 5), teacher = ValuesOf(i, 4 * kTopK);
    // The second column alone with the block, the first later.
    const AppendEntry block = BlockEntry{{Name(i)}, 0, 0, records.View(), {}, {{}, teacher}};
    ASSERT_TRUE(stream->AppendMany({&block, 1}).ok());
    ASSERT_TRUE(stream->Seal({Name(i)}, kLength).ok());
    ASSERT_TRUE(
        stream->Column({Name(i)}, 10, kLength - 10, "experts", std::span(experts).subspan(10 * 5))
            .ok());
    slices.push_back({{Name(i)}, 0, kLength});
  }
  ASSERT_TRUE(stream->Column({Name(0)}, 0, 1, "mask", {}).ok());
  ASSERT_TRUE(stream->Column({"lost"}, 0, 1, "experts", ValuesOf(0, 5)).ok());
  const std::vector<std::byte> one(5, std::byte{1});
  ASSERT_TRUE(stream->Column({Name(0)}, 10, 1, "experts", one).ok());
  const auto refused = stream->Finish();
  ASSERT_TRUE(refused.ok()) << refused.status();
  std::vector<absl::StatusCode> codes;
  for (const RefusedEntry& entry : *refused) codes.push_back(entry.status.code());
  std::ranges::sort(codes);
  EXPECT_EQ(codes, (std::vector{absl::StatusCode::kInvalidArgument, absl::StatusCode::kNotFound,
                                absl::StatusCode::kAlreadyExists}));

  FetchOptions options{.arrays = {v1::SAMPLED_IDS}, .columns = {"teacher", "experts"}};
  const auto fetch = [&] {
    absl::StatusOr<TopKRecords> fetched = client_->FetchTopK(kRun, slices, options);
    EXPECT_TRUE(fetched.ok()) << fetched.status();
    return *std::move(fetched);
  };
  const auto expect = [&](const TopKRecords& fetched, const std::vector<bool>& there) {
    ASSERT_EQ(fetched.columns.size(), 2);
    for (const size_t column : {0, 1}) {
      const FetchedColumn& found = fetched.columns[column];
      const size_t width = column == 0 ? 4 * kTopK : 5;
      const uint32_t first = column == 0 ? 0 : 10;
      ASSERT_EQ(found.width, width);
      ASSERT_EQ(found.values.size(), kSequences * kLength * width);
      ASSERT_EQ(found.present.size(), kSequences * kLength);
      for (int i = 0; i < kSequences; ++i) {
        const std::vector<std::byte> wanted = ValuesOf(i, width);
        for (uint32_t p = 0; p < kLength; ++p) {
          const bool present = there[i] && p >= first;
          ASSERT_EQ(found.present[i * kLength + p], present) << i << " " << p;
          const auto value = found.values.subspan((i * kLength + p) * width, width);
          ASSERT_TRUE(
              present ? std::ranges::equal(value, std::span(wanted).subspan(p * width, width))
                      : std::ranges::all_of(value, [](std::byte b) { return b == std::byte{}; }))
              << i << " " << p;
        }
      }
    }
  };
  expect(fetch(), std::vector<bool>(kSequences, true));
  EXPECT_TRUE(fetch().log_probs.empty());
  EXPECT_EQ(client_->FetchTopK(kRun, slices, {.columns = {"mask"}}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(client_->FetchTopK(kRun, slices, {.columns = {"experts", "experts"}}).status().code(),
            absl::StatusCode::kInvalidArgument);
  if (GetParam() == 1) {
    auto memory = client_->LeaseSharedMemory(64 << 10);
    ASSERT_TRUE(memory.ok()) << memory.status();
    options.memory = memory->get();
    const TopKRecords alone = fetch();
    options.arrays = {};
    options.ragged = true;
    const TopKRecords with_sets = fetch();
    EXPECT_GT(with_sets.ids.size(), kSequences * kLength);
    for (const TopKRecords* located : {&alone, &with_sets}) {
      for (const FetchedColumn& column : located->columns) {
        EXPECT_TRUE(LiesIn(**memory, column.values));
        EXPECT_TRUE(LiesIn(**memory, std::as_bytes(column.present)));
      }
    }
    EXPECT_EQ(client_->FetchTopK(kRun, slices, options).status().code(),
              absl::StatusCode::kInvalidArgument)
        << "too little is free";
    options.columns = {"mask"};
    EXPECT_EQ(client_->FetchTopK(kRun, slices, options).status().code(),
              absl::StatusCode::kNotFound);
    // They outlive the lease.
    memory->reset();
    expect(alone, std::vector<bool>(kSequences, true));
    expect(with_sets, std::vector<bool>(kSequences, true));
    return;
  }

  servers_[0]->Shutdown(absl::ZeroDuration());
  servers_[0].reset();
  std::vector<bool> there;
  for (int i = 0; i < kSequences; ++i) {
    there.push_back(Placement(addresses_).Replica("run", Name(i)) != 0);
  }
  expect(fetch(), there);
}

INSTANTIATE_TEST_SUITE_P(Servers, ColumnsTest, testing::Values(1, 3),
                         [](const auto& info) { return absl::StrCat(info.param); });

}  // namespace
}  // namespace sis
