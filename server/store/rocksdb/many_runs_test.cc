// The cost of runs in RocksDB after very many earlier runs.
#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <rocksdb/perf_context.h>
#include <rocksdb/table_properties.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/testing/backing.h"
#include "server/testing/store_parts.h"

namespace sis {
namespace {

// Returns the number of removed keys that RocksDB skips in this thread during `call`.
template <typename Call>
uint64_t PassedOver(const Call& call) {
  rocksdb::PerfContext& counts = *rocksdb::get_perf_context();
  counts.Reset();
  call();
  return counts.internal_key_skipped_count + counts.internal_delete_skipped_count;
}

void LiveAndDie(Store& store, const std::string& run_id, uint64_t incarnation) {
  ASSERT_EQ(store.PutRun({run_id, incarnation, 0, "config"})->incarnation, incarnation);
  const SequenceIdentity sequence{run_id, incarnation, "a", 0};
  for (uint32_t n = 0; n < 2; ++n) {
    ASSERT_TRUE(PutOne(store, sequence, Block(n, 1, "rows")).ok());
  }
  ASSERT_TRUE(store.PutRun({run_id, incarnation, 0, ""})->deleted());
  ASSERT_TRUE(store.DropIncarnations(run_id, incarnation, incarnation + 1).ok());
}

// Counts of removed keys in the tables.
struct Removals {
  uint64_t keys = 0, ranges = 0;
};
Removals RemovalsIn(const std::string& folder) {
  rocksdb::DB* opened = nullptr;
  EXPECT_TRUE(rocksdb::DB::OpenForReadOnly(rocksdb::Options(), folder, &opened).ok());
  const std::unique_ptr<rocksdb::DB> db(opened);
  rocksdb::TablePropertiesCollection tables;
  EXPECT_TRUE(db->GetPropertiesOfAllTables(&tables).ok());
  Removals removals{.keys = UINT64_MAX};
  for (const auto& [name, table] : tables) {
    removals.keys += table->num_deletions;
    removals.ranges += table->num_range_deletions;
  }
  return removals;
}

TEST(ManyRunsTest, TheCostOfARunIsIndependentOfDeletedRuns) {
  constexpr uint64_t kRuns = 50'000;
  RocksDbBacking backing;
  auto store = Open(backing);
  // Half of them under one id.
  const auto cost = [&](uint64_t number) {
    const bool is_same = number % 2 == 0;
    return PassedOver([&] {
      LiveAndDie(*store, is_same ? "again" : absl::StrCat("run ", number),
                 is_same ? number + 1 : 1);
    });
  };
  uint64_t most = 0;
  for (uint64_t number = 0; number < kRuns; ++number) most = std::max(most, cost(number));
  EXPECT_LE(most, 10);

  // RocksDB removes keys from its tables when it merges them, after a few more tables. Each start
  // makes one.
  Removals removals;
  for (uint64_t start = 1; removals.keys > 100 && !HasFailure(); ++start) {
    store.reset();
    const uint64_t opening = PassedOver([&] { store = Open(backing); });
    EXPECT_LE(opening, 3 * kRuns + 10);
    EXPECT_GT(store->ListRuns()->runs.size(), kRuns / 2);
    LiveAndDie(*store, "one more", start);
    store.reset();
    removals = RemovalsIn(backing.folder());
    EXPECT_EQ(removals.ranges, 0);
  }
}

}  // namespace
}  // namespace sis
