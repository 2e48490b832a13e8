#include "server/cache/sequence_columns.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "server/cache/sequence.h"
#include "server/testing/rounded_records.h"

namespace sis {
namespace {

constexpr uint32_t kPositions = 300;
constexpr std::array<uint32_t, 3> kWidths = {1, 48, 1000};
constexpr RecordFormat kFormat = {
    .encoding = LogProbEncoding::kFixed12, .slots = 2, .vocabulary_size = 1000};

// Two values for each position.
std::vector<std::byte> ValuesOf(uint32_t column, uint32_t first, uint32_t count, int variant) {
  std::vector<std::byte> values;
  for (uint32_t p = first; p < first + count; ++p) {
    values.insert(values.end(), kWidths[column], std::byte(p));
    values.back() = std::byte(100 * variant + column);
  }
  return values;
}

class SequenceColumnsTest : public testing::Test {
 protected:
  ColumnValues Values(uint32_t column, uint32_t first, uint32_t count, int variant) {
    values_[column] = ValuesOf(column, first, count, variant);
    return {column, kWidths[column], values_[column]};
  }
  absl::Status Append(Sequence& sequence, uint32_t first, uint32_t count,
                      const std::vector<ColumnValues>& columns,
                      Sequence::Appended* appended = nullptr) {
    return sequence.Append(first, 1, records_.View(first, count),
                           std::span(records_.ranks).subspan(first, count), appended, columns);
  }
  void ExpectColumn(const Sequence& sequence, uint32_t column,
                    const std::map<uint32_t, int>& expected) {
    const Sequence::Reader reader(sequence);
    std::vector<std::byte> values(kPositions * kWidths[column], std::byte{7});
    std::vector<uint8_t> present(kPositions, 7);
    reader.ReadColumn(column, 0, values, present);
    std::vector<std::byte> wanted(values.size());
    for (const auto& [position, variant] : expected) {
      std::ranges::copy(ValuesOf(column, position, 1, variant),
                        &wanted[position * kWidths[column]]);
    }
    EXPECT_EQ(values, wanted);
    for (uint32_t p = 0; p < kPositions; ++p) {
      ASSERT_EQ(present[p], expected.contains(p) ? 1 : 0) << p;
      ASSERT_EQ(reader.HasColumn(column, p, 1), expected.contains(p)) << p;
    }
  }

  std::mt19937 random_{5};
  const SentRecords records_ = SentRecords(kFormat, kPositions, 3);
  std::array<std::vector<std::byte>, kWidths.size()> values_;
  std::unique_ptr<Arena> arena_ = *Arena::Map(16 << 20);
};

// Whatever the order of blocks, columns, truncations and shortages: what was appended is there, and
// nothing else; what is refused changes nothing; what is charged is what it holds.
TEST_F(SequenceColumnsTest, WhatWasAppendedIsThere) {
  const auto uniform = [&](uint32_t low, uint32_t high) {
    return std::uniform_int_distribution<uint32_t>(low, high)(random_);
  };
  std::map<absl::StatusCode, int> answers;
  for (int round = 0; round < 60; ++round) {
    ByteBudget budget(round % 2 == 0 ? int64_t{1} << 30 : 150'000);
    ASSERT_TRUE(budget.TryCharge(Sequence::kBaseBytes));
    {
      Sequence sequence(kFormat, /*key=*/1, *arena_, budget);
      std::map<uint32_t, int> recorded;
      std::array<std::map<uint32_t, int>, kWidths.size()> columns;
      for (int operation = 0; operation < 60; ++operation) {
        const uint32_t first = uniform(0, kPositions - 1);
        const uint32_t count = uniform(1, std::min(90u, kPositions - first));
        const uint32_t end = first + count;
        const int variant = uniform(0, 9) == 0 ? 1 : 0;
        const auto has_other = [&](uint32_t column) {
          for (uint32_t p = first; p < end; ++p) {
            const auto there = columns[column].find(p);
            if (there != columns[column].end() && there->second != variant) return true;
          }
          return false;
        };
        const uint32_t kind = uniform(0, 9);
        if (kind == 0) {
          EXPECT_TRUE(sequence.Truncate(first).ok());
          recorded.erase(recorded.lower_bound(first), recorded.end());
          for (auto& column : columns) column.erase(column.lower_bound(first), column.end());
        } else if (kind < 6) {
          std::vector<ColumnValues> values;
          bool other = false;
          for (uint32_t c = 0; c < kWidths.size(); ++c) {
            if (uniform(0, 1) == 0) continue;
            values.push_back(Values(c, first, count, variant));
            other = other || has_other(c);
          }
          const int64_t used = budget.used();
          const int64_t bytes =
              sequence.BytesToAppend(first, 1, records_.View(first, count),
                                     std::span(records_.ranks).subspan(first, count), values);
          Sequence::Appended appended;
          const absl::Status status = Append(sequence, first, count, values, &appended);
          ++answers[status.code()];
          if (other) {
            ASSERT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << status;
          } else {
            ASSERT_EQ(status.ok(), used + bytes <= budget.limit()) << status;
          }
          if (status.ok()) {
            int64_t added = 0;
            for (const ColumnValues& column : values) {
              for (uint32_t p = first; p < end; ++p) {
                added += columns[column.column].try_emplace(p, variant).second;
              }
            }
            EXPECT_EQ(appended.values, added);
            for (uint32_t p = first; p < end; ++p) recorded[p] = 0;
          } else {
            EXPECT_EQ(budget.used(), used);
          }
        } else {
          const uint32_t column = uniform(0, kWidths.size() - 1);
          const ColumnValues values = Values(column, first, count, variant);
          const int64_t used = budget.used();
          const int64_t bytes = sequence.BytesToAppend(first, values);
          const absl::StatusOr<int64_t> added = sequence.AppendColumn(first, values);
          ++answers[added.status().code()];
          bool all = true;
          for (uint32_t p = first; p < end; ++p) all = all && recorded.contains(p);
          if (!all) {
            ASSERT_EQ(added.status().code(), absl::StatusCode::kFailedPrecondition);
          } else if (has_other(column)) {
            ASSERT_EQ(added.status().code(), absl::StatusCode::kAlreadyExists);
          } else {
            ASSERT_EQ(added.ok(), used + bytes <= budget.limit()) << added.status();
          }
          EXPECT_EQ(budget.used(), added.ok() ? used + bytes : used);
          int64_t absent = 0;
          for (uint32_t p = first; added.ok() && p < end; ++p) {
            absent += columns[column].try_emplace(p, variant).second;
          }
          EXPECT_EQ(added.value_or(0), absent);
        }
        for (uint32_t c = 0; c < kWidths.size(); ++c) ExpectColumn(sequence, c, columns[c]);
        if (HasFailure()) FAIL() << "round " << round << " operation " << operation;
      }
    }
    EXPECT_EQ(budget.used(), 0);
  }
  EXPECT_EQ(arena_->used_bytes(), 0);
  for (const absl::StatusCode code :
       {absl::StatusCode::kOk, absl::StatusCode::kAlreadyExists,
        absl::StatusCode::kFailedPrecondition, absl::StatusCode::kResourceExhausted}) {
    EXPECT_GT(answers[code], 20) << absl::StatusCodeToString(code);
  }
}

TEST_F(SequenceColumnsTest, ASealedSequenceTakesValues) {
  ByteBudget budget(1 << 20);
  ASSERT_TRUE(budget.TryCharge(Sequence::kBaseBytes));
  Sequence sequence(kFormat, 1, *arena_, budget);
  ASSERT_TRUE(Append(sequence, 0, 10, {}).ok());
  ASSERT_TRUE(sequence.Seal(12).ok());
  EXPECT_EQ(*sequence.AppendColumn(2, Values(1, 2, 8, 0)), 8);
  EXPECT_EQ(*sequence.AppendColumn(0, Values(1, 0, 10, 0)), 2);
  EXPECT_EQ(sequence.AppendColumn(2, Values(1, 2, 9, 0)).status().message(),
            "position 10 has no record");
  EXPECT_EQ(sequence.AppendColumn(4, Values(1, 4, 1, 1)).status().message(),
            "columns[1]: position 4 has another value");
}

// Whatever their width: values that a budget holds are in an arena of that size.
TEST_F(SequenceColumnsTest, WhatIsChargedIsWhatTheArenaLacksThen) {
  constexpr int64_t kBytes = 16 << 20;
  for (const uint32_t width : {1000, 8192, 8193, 10000, 16384}) {
    const std::unique_ptr<Arena> arena = *Arena::Map(kBytes);
    ByteBudget budget(kBytes);
    SequenceColumns columns(*arena, budget);
    const std::vector<std::byte> value(width);
    const ColumnValues values{0, width, value};
    uint32_t pages = 0;
    while (SequenceColumns::BytesToAdd(&columns, pages * 64, {&values, 1}) <=
           kBytes - budget.used()) {
      ASSERT_TRUE(columns.Reserve(pages * 64, {&values, 1}).ok()) << width;
      columns.Add(pages * 64, {&values, 1});
      ++pages;
    }
    EXPECT_GE(pages, 15u);
  }
}

TEST_F(SequenceColumnsTest, DigestsAreOfRecordsAlone) {
  ByteBudget budget(1 << 20);
  ASSERT_TRUE(budget.TryCharge(2 * Sequence::kBaseBytes));
  Sequence without(kFormat, 1, *arena_, budget), with(kFormat, 1, *arena_, budget);
  ASSERT_TRUE(Append(without, 0, 100, {}).ok());
  ASSERT_TRUE(Append(with, 0, 100, {Values(0, 0, 100, 0)}).ok());
  EXPECT_EQ(Sequence::Reader(with).Digest(0, 100), Sequence::Reader(without).Digest(0, 100));
}

// A byte that changes in memory: what it belongs to is not handed out.
TEST_F(SequenceColumnsTest, DamagedValuesAreNotThere) {
  ByteBudget budget(1 << 20);
  SequenceColumns columns(*arena_, budget);
  const ColumnValues values = Values(1, 60, 10, 0);
  ASSERT_TRUE(columns.Reserve(60, {&values, 1}).ok());
  EXPECT_EQ(columns.Add(60, {&values, 1}), 10);
  const auto read = [&] {
    std::vector<std::byte> bytes(10 * kWidths[1]);
    std::vector<uint8_t> present(10);
    columns.Read(1, 60, bytes, present);
    return std::vector<int>(present.begin(), present.end());
  };
  EXPECT_EQ(read(), std::vector<int>(10, 1));
  // The values are handed to a visitor in place.
  std::byte* first = nullptr;
  ASSERT_TRUE(columns
                  .ForEach([&](uint32_t, const ColumnValues& there) {
                    if (first == nullptr) first = const_cast<std::byte*>(there.values.data());
                  })
                  .ok());
  *first ^= std::byte{1};
  // Four positions of the first page, six of the next.
  EXPECT_EQ(read(), (std::vector<int>{0, 0, 0, 0, 1, 1, 1, 1, 1, 1}));
  EXPECT_TRUE(absl::IsDataLoss(columns.ForEach([](uint32_t, const ColumnValues&) {})));
  EXPECT_TRUE(absl::IsDataLoss(columns.CheckFits(60, {&values, 1})));
  *first ^= std::byte{1};
  EXPECT_TRUE(columns.CheckFits(60, {&values, 1}).ok());
}

TEST(CheckColumnsTest, NamesTheFieldAndTheValue) {
  const auto check = [](const std::vector<Column>& columns, uint32_t slots = 10) {
    return std::string(CheckColumns(columns, slots).message());
  };
  EXPECT_EQ(check({{"experts", 384, false}, {"teacher", 4, true}}), "");
  EXPECT_EQ(check({{"a b", 1, false}}),
            "config.columns[0].name of 3 bytes is not 1 to 64 bytes of [A-Za-z0-9._-]");
  EXPECT_EQ(check({{"", 1, false}}),
            "config.columns[0].name of 0 bytes is not 1 to 64 bytes of [A-Za-z0-9._-]");
  EXPECT_EQ(check({{"a", 1, false}, {"a", 2, false}}),
            "config.columns[1].name 'a' is another column's, too");
  EXPECT_EQ(check({{"a", 0, false}}), "config.columns[0].bytes 0 is not in [1, 4096]");
  EXPECT_EQ(check({{"a", 4097, false}}), "config.columns[0].bytes 4097 is not in [1, 4096]");
  EXPECT_EQ(check({{"a", 4096, true}}, 4), "");
  EXPECT_EQ(check({{"a", 4096, true}}, 5),
            "config.columns: 20480 bytes a position, more than 16384");
  EXPECT_EQ(check(std::vector<Column>(9, {"a", 1, false})), "config.columns: 9, more than 8");
}

}  // namespace
}  // namespace sis
