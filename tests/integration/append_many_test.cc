// Entries of many sequences at once are what the same entries are one by one: stored, refused, lost
// with a server and sent again; over one server and over replicas.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/api/client.h"
#include "server/testing/live_server.h"
#include "server/testing/record_generator.h"
#include "tests/integration/same_records.h"

namespace sis {
namespace {

constexpr int kSlots = 10;
constexpr int kVocabulary = 1000;
constexpr uint32_t kBlock = 16;
constexpr uint32_t kLengths[] = {64, 1, 100, 7, 33, 16, 48, 5, 80, 2, 17, 64};
const RunRef kMany{"many"}, kOneByOne{"one-by-one"};

enum class Over { kOneServer, kReplicas };

// An entry that was refused: sequence, attempt, code, message.
using Refused = std::tuple<std::string, uint32_t, absl::StatusCode, std::string>;

class AppendManyTest : public testing::TestWithParam<Over> {
 protected:
  void SetUp() override {
    for (int i = 0; i < (GetParam() == Over::kReplicas ? 3 : 1); ++i) {
      options_.push_back(LiveServer::Options());
      servers_.push_back(std::make_unique<LiveServer>(options_[i]));
      options_[i].listen = servers_[i]->grpc_address();
      names_.push_back(options_[i].listen);
    }
    auto client =
        GetParam() == Over::kReplicas ? Client::Connect(names_) : Client::Connect(names_[0]);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    for (const RunRef& run : {kMany, kOneByOne}) {
      const v1::RunConfig config = LiveServer::RunRequest(run.run_id, kSlots, kVocabulary).config();
      ASSERT_TRUE(client_->CreateRun(run.run_id, config).ok());
    }
    // All sequences grow side by side, as those of an engine do.
    for (const uint32_t length : kLengths) {
      slices_.push_back({{absl::StrCat("s", slices_.size()), 1}, 0, length});
      records_.push_back(generator_.NextRecords(length));
    }
    for (uint32_t first = 0; first < std::ranges::max(kLengths); first += kBlock) {
      for (size_t i = 0; i < slices_.size(); ++i) {
        if (first >= kLengths[i]) continue;
        Add(slices_[i].sequence, first,
            records_[i].View(first, std::min(kBlock, kLengths[i] - first)));
      }
    }
  }

  void Add(const SequenceRef& sequence, uint32_t first_position, const RecordView& records) {
    entries_.push_back(BlockEntry{sequence, first_position, /*policy_version=*/0, records});
  }

  std::unique_ptr<AppendWriter> Stream(const RunRef& run) {
    v1::Sampling sampling;
    sampling.set_log_probs(v1::Sampling::RAW);
    sampling.set_temperature(1);
    return client_->Append(run, sampling, kVocabulary);
  }
  static absl::Status AppendOneByOne(AppendWriter& stream, std::span<const AppendEntry> entries) {
    for (const AppendEntry& entry : entries) {
      absl::Status status;
      if (const auto* block = std::get_if<BlockEntry>(&entry)) {
        status = stream.Block(block->sequence, block->first_position, block->policy_version,
                              block->records);
      } else {
        const auto& seal = std::get<SealEntry>(entry);
        status = stream.Seal(seal.sequence, seal.length);
      }
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }
  // Those of different replicas come in any order.
  static std::vector<Refused> Sorted(const absl::StatusOr<std::vector<RefusedEntry>>& refused) {
    EXPECT_TRUE(refused.ok()) << refused.status();
    std::vector<Refused> sorted;
    for (const RefusedEntry& entry : *refused) {
      sorted.push_back({entry.sequence.id, entry.sequence.attempt, entry.status.code(),
                        std::string(entry.status.message())});
    }
    std::ranges::sort(sorted);
    return sorted;
  }

  void ExpectSameInBothRuns() {
    const auto many = client_->FetchTopK(kMany, slices_);
    const auto one_by_one = client_->FetchTopK(kOneByOne, slices_);
    ASSERT_TRUE(many.ok() && one_by_one.ok()) << many.status() << one_by_one.status();
    ExpectSameRecords(*many, *one_by_one);
    EXPECT_TRUE(many->missing.empty());
    size_t row = 0;
    for (const Records& records : records_) {
      const size_t count = records.size();
      EXPECT_EQ(BytesOf(many->ids.subspan(row * kSlots, count * kSlots)),
                BytesOf(std::span(records.ids)));
      row += count;
    }
  }

  // All servers lose what they hold.
  void Restart() {
    for (size_t i = 0; i < servers_.size(); ++i) {
      servers_[i]->Shutdown(absl::ZeroDuration());
      servers_[i].reset();
      servers_[i] = std::make_unique<LiveServer>(options_[i]);
    }
  }

  RecordGenerator generator_{kSlots, kVocabulary, 29};
  std::vector<ServerOptions> options_;
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<LiveServer>> servers_;
  std::unique_ptr<Client> client_;
  std::vector<Slice> slices_;
  std::vector<Records> records_;
  std::vector<AppendEntry> entries_;
};

TEST_P(AppendManyTest, RecordsDigestsAndRefusalsAreThoseOfOneByOne) {
  // What is refused for its values, its sizes, its name and what is there already; and what is
  // there already, and the same.
  const RecordView block = std::get<BlockEntry>(entries_[0]).records;
  std::vector<float> not_a_number(block.sampled_log_probs.begin(), block.sampled_log_probs.end());
  not_a_number[5] = std::numeric_limits<float>::quiet_NaN();
  const RecordView others = records_[2].View(16, 16);
  Add({"bad values"}, 0, {block.sampled_ids, not_a_number, block.ids, block.log_probs});
  Add({"bad sizes"}, 0,
      {block.sampled_ids, block.sampled_log_probs, block.ids, others.log_probs.first(3)});
  Add({""}, 0, block);
  Add(slices_[0].sequence, 16, others);
  Add(slices_[0].sequence, 0, block);
  Add({"beyond all"}, std::numeric_limits<uint32_t>::max(), block);
  // In the middle of them, behind what they differ from.
  std::rotate(entries_.begin() + 20, entries_.end() - 6, entries_.end());
  // All end, and nothing is taken beyond.
  for (const Slice& slice : slices_) entries_.push_back(SealEntry{slice.sequence, slice.length});
  Add(slices_[1].sequence, slices_[1].length, others);

  const auto many = Stream(kMany), one_by_one = Stream(kOneByOne);
  ASSERT_TRUE(many->AppendMany(entries_).ok());
  ASSERT_TRUE(AppendOneByOne(*one_by_one, entries_).ok());
  std::vector<Refused> refused = Sorted(many->Flush());
  EXPECT_EQ(refused.size(), 6);
  EXPECT_EQ(refused, Sorted(one_by_one->Flush()));
  ExpectSameInBothRuns();

  // The streams go on.
  entries_.clear();
  for (const Slice& slice : slices_) Add(slice.sequence, slice.length, others);
  ASSERT_TRUE(many->AppendMany(entries_).ok());
  ASSERT_TRUE(AppendOneByOne(*one_by_one, entries_).ok());
  refused = Sorted(many->Finish());
  EXPECT_EQ(refused.size(), slices_.size());
  EXPECT_EQ(refused, Sorted(one_by_one->Finish()));
  ExpectSameInBothRuns();
}

TEST_P(AppendManyTest, AfterARestartAnotherStreamTakesThemAgain) {
  const std::span<const AppendEntry> entries = entries_;
  const size_t half = entries.size() / 2;
  {
    const auto stream = Stream(kMany);
    ASSERT_TRUE(stream->AppendMany(entries.first(half)).ok());
    ASSERT_TRUE(Sorted(stream->Flush()).empty());
    Restart();
    // One server's stream breaks, while replicas refuse entries: either says Unavailable.
    absl::Status status = stream->AppendMany(entries.subspan(half));
    auto ended = stream->Finish();
    status.Update(ended.status());
    for (const RefusedEntry& entry : ended.ok() ? *ended : std::vector<RefusedEntry>()) {
      status.Update(entry.status);
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  }
  const auto append = [&](const RunRef& run, const auto& put) {
    while (true) {
      const auto stream = Stream(run);
      absl::Status status = put(*stream);
      const auto refused = stream->Finish();
      if (status.ok() && refused.ok() && refused->empty()) break;
      absl::SleepFor(absl::Milliseconds(50));
    }
  };
  append(kMany, [&](AppendWriter& stream) { return stream.AppendMany(entries); });
  append(kOneByOne, [&](AppendWriter& stream) { return AppendOneByOne(stream, entries); });
  ExpectSameInBothRuns();
}

std::string NameOf(const testing::TestParamInfo<Over>& over) {
  constexpr const char* kNames[] = {"OneServer", "Replicas"};
  return kNames[static_cast<int>(over.param)];
}

INSTANTIATE_TEST_SUITE_P(All, AppendManyTest, testing::Values(Over::kOneServer, Over::kReplicas),
                         NameOf);

}  // namespace
}  // namespace sis
