// Which copies are found, made, pushed out and given up; that what they hold is right when batches
// run is in staged_backend_test and tests/conformance.
#include "kernels/cuda/residency/resident_rows.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/testing/host_stage.h"

namespace sis::cuda {
namespace {

constexpr size_t kChunk = 1024;  // 8 pages of 128 bytes

// A page that is never read, only named.
struct NamedRows {
  explicit NamedRows(size_t size = 128) : bytes(size) { tag.Renew(); }
  FixedRows rows() const { return {bytes, &tag}; }

  std::vector<std::byte> bytes;
  RowsTag tag;
};

class ResidentRowsTest : public testing::Test {
 protected:
  // Looks for each page in a batch of its own; returns how many were there.
  int64_t Read(ResidentRows& rows, const std::deque<NamedRows>& pages) {
    const int64_t before = rows.stats().hits;
    ResidentRows::Use use(&rows);
    for (const NamedRows& page : pages) {
      use.Find(page.rows(), true);
      use.Done();
    }
    return rows.stats().hits - before;
  }
};

TEST_F(ResidentRowsTest, WhatFitsIsCopiedOnceAndFoundFromThenOn) {
  HostResidentMemory memory(4 * kChunk + 100);
  ResidentRows rows(memory, kChunk);
  std::deque<NamedRows> pages(32);
  EXPECT_EQ(Read(rows, pages), 0);
  EXPECT_EQ(Read(rows, pages), 32);
  EXPECT_EQ(Read(rows, pages), 32);
  const ResidentRowsStats stats = rows.stats();
  EXPECT_EQ(stats.capacity_bytes, 4 * kChunk);
  EXPECT_EQ(stats.used_bytes, 4 * kChunk);
  EXPECT_EQ(stats.copies, 32);
  EXPECT_EQ(stats.passes, 0);
  EXPECT_EQ(stats.evictions, 0);
}

TEST_F(ResidentRowsTest, NewPagesPushOutTheLeastRecentlyRead) {
  HostResidentMemory memory(4 * kChunk);
  ResidentRows rows(memory, kChunk);
  std::deque<NamedRows> first(16);
  std::deque<NamedRows> second(16);
  std::deque<NamedRows> third(16);
  Read(rows, first);
  Read(rows, second);
  EXPECT_EQ(Read(rows, first), 16);
  Read(rows, third);
  EXPECT_EQ(rows.stats().evictions, 16);
  EXPECT_EQ(Read(rows, first), 16);
  EXPECT_EQ(Read(rows, third), 16);
  EXPECT_EQ(Read(rows, second), 0);
}

// Plain least-recently-read would find nothing.
TEST_F(ResidentRowsTest, AStepLargerThanTheMemoryFindsWhatFits) {
  HostResidentMemory memory(10 * kChunk);
  ResidentRows rows(memory, kChunk);
  std::deque<NamedRows> step(110);
  Read(rows, step);
  for (int pass = 0; pass < 3; ++pass) EXPECT_GE(Read(rows, step), 72);
  // And the next step takes its location.
  std::deque<NamedRows> next(80);
  Read(rows, next);
  EXPECT_EQ(Read(rows, next), 80);
}

// Rows that were turned away come in once those that are there are read no more.
TEST_F(ResidentRowsTest, RowsThatAreReadPushOutThoseThatAreNot) {
  HostResidentMemory memory(2 * kChunk);
  ResidentRows rows(memory, kChunk);
  std::deque<NamedRows> old(16);
  std::deque<NamedRows> pages(16);
  Read(rows, pages);
  Read(rows, old);
  EXPECT_EQ(Read(rows, pages), 0);  // turned away
  EXPECT_EQ(rows.stats().passes, 16);
  EXPECT_EQ(Read(rows, pages), 0);  // but now copied
  EXPECT_EQ(Read(rows, pages), 16);
}

TEST_F(ResidentRowsTest, ACopyIsItsBatchesAloneUntilDone) {
  HostResidentMemory memory(4 * kChunk);
  ResidentRows rows(memory, kChunk);
  const NamedRows page;
  ResidentRows::Use one(&rows);
  ResidentRows::Use other(&rows);
  const auto location = one.Find(page.rows(), true);
  ASSERT_TRUE(location.has_value());
  EXPECT_EQ(one.Find(page.rows(), true), location);
  ASSERT_EQ(one.copies().size(), 1);
  EXPECT_EQ(one.copies()[0].to, *location);
  EXPECT_EQ(one.copies()[0].from.data(), page.bytes.data());
  EXPECT_EQ(other.Find(page.rows(), true), std::nullopt);
  EXPECT_TRUE(other.copies().empty());
  one.Done();
  EXPECT_EQ(other.Find(page.rows(), true), location);
}

TEST_F(ResidentRowsTest, WhatABatchReadsStaysUntilItIsDone) {
  HostResidentMemory memory(2 * kChunk);
  ResidentRows rows(memory, kChunk);
  std::deque<NamedRows> pages(16);
  Read(rows, pages);
  ResidentRows::Use use(&rows);
  EXPECT_TRUE(use.Find(pages.front().rows(), true).has_value());
  std::deque<NamedRows> others(16);
  Read(rows, others);
  EXPECT_EQ(rows.stats().evictions, 16);  // the same slab twice
  EXPECT_TRUE(use.Find(pages[1].rows(), true).has_value());
  use.Done();
  std::deque<NamedRows> more(16);
  Read(rows, more);
  EXPECT_EQ(use.Find(pages.front().rows(), false), std::nullopt);
}

TEST_F(ResidentRowsTest, WhatAFailedBatchHeldIsGivenToNobody) {
  HostResidentMemory memory(2 * kChunk);
  ResidentRows rows(memory, kChunk);
  const NamedRows page;
  ResidentRows::Use use(&rows);
  EXPECT_TRUE(use.Find(page.rows(), true).has_value());
  use.Abandon();
  EXPECT_TRUE(use.copies().empty());
  EXPECT_EQ(use.Find(page.rows(), true), std::nullopt);
  use.Done();
  for (int i = 0; i < 5; ++i) {
    std::deque<NamedRows> pages(16);
    Read(rows, pages);
  }
  // Once full, its slab is left alone.
  EXPECT_EQ(rows.stats().evictions % 8, 0);
  EXPECT_EQ(use.Find(page.rows(), true), std::nullopt);
}

TEST_F(ResidentRowsTest, ARenewedTagIsFoundNowhere) {
  HostResidentMemory memory(2 * kChunk);
  ResidentRows rows(memory, kChunk);
  std::deque<NamedRows> pages(1);
  Read(rows, pages);
  EXPECT_EQ(Read(rows, pages), 1);
  pages[0].tag.Renew();
  EXPECT_EQ(Read(rows, pages), 0);
  EXPECT_EQ(Read(rows, pages), 1);
  EXPECT_EQ(rows.stats().copies, 2);
}

TEST_F(ResidentRowsTest, NothingIsKeptOfRowsThatMayChangeOrAreLargerThanAChunk) {
  HostResidentMemory memory(2 * kChunk);
  ResidentRows rows(memory, kChunk);
  ResidentRows::Use use(&rows);
  const NamedRows large(kChunk + 1);
  const NamedRows page;
  const RowsTag unnamed;
  EXPECT_EQ(use.Find(large.rows(), true), std::nullopt);
  EXPECT_EQ(use.Find({page.bytes, nullptr}, true), std::nullopt);
  EXPECT_EQ(use.Find({page.bytes, &unnamed}, true), std::nullopt);
  EXPECT_EQ(use.Find(page.rows(), false), std::nullopt);
  EXPECT_EQ(rows.stats().copies, 0);
  EXPECT_EQ(rows.stats().used_bytes, 0);
  ResidentRows::Use without(nullptr);
  EXPECT_EQ(without.Find(page.rows(), true), std::nullopt);
  without.Done();
}

// A turned-away page that comes in pieces is one reading of it, not a reason to take it in.
TEST_F(ResidentRowsTest, PiecesOfAPageAreReadOnce) {
  HostResidentMemory memory(kChunk);
  ResidentRows rows(memory, kChunk);
  std::deque<NamedRows> first(8);
  std::deque<NamedRows> second(8);
  Read(rows, first);
  Read(rows, second);
  ResidentRows::Use use(&rows);
  for (int piece = 0; piece < 3; ++piece) {
    EXPECT_EQ(use.Find(first[0].rows(), true), std::nullopt) << piece;
  }
  use.Done();
  EXPECT_EQ(Read(rows, second), 8);
}

// Random batches, several in flight, pages of three sizes that come, change and go: locations in
// use never overlap, and whatever is found is what was written there.
TEST_F(ResidentRowsTest, PlacesHoldWhatWasCopiedThere) {
  constexpr size_t kChunks = 7;
  HostResidentMemory memory(kChunks * kChunk);
  const HostResidentMemory::Access access(memory);
  ResidentRows rows(memory, kChunk);
  std::mt19937 random(1);
  std::vector<std::unique_ptr<NamedRows>> pages(60);
  const auto renew = [&](NamedRows& page) {
    page.tag.Renew();
    for (std::byte& byte : page.bytes) byte = static_cast<std::byte>(random());
  };
  const auto fresh = [&] {
    auto page = std::make_unique<NamedRows>(1 + random() % 3 * 150);
    renew(*page);
    return page;
  };
  for (auto& page : pages) page = fresh();

  struct Batch {
    explicit Batch(ResidentRows* rows) : use(rows) {}
    ResidentRows::Use use;
    std::map<const NamedRows*, size_t> found;
  };
  std::deque<Batch> batches;
  for (int i = 0; i < 4; ++i) batches.emplace_back(&rows);
  const auto in_use = [&](const NamedRows* page) {
    return std::ranges::any_of(batches, [&](const Batch& b) { return b.found.contains(page); });
  };
  for (int step = 0; step < 20000; ++step) {
    Batch& batch = batches[random() % batches.size()];
    auto& page = pages[random() % pages.size()];
    switch (random() % 8) {
      default: {
        const auto location = batch.use.Find(page->rows(), random() % 4 != 0);
        if (!location.has_value()) break;
        ASSERT_LE(*location + page->bytes.size(), kChunks * kChunk);
        ASSERT_EQ(*location % ResidentRows::kAlignment, 0);
        batch.found[page.get()] = *location;
        break;
      }
      case 1: {  // the batch runs
        for (const ResidentRows::Use::Copy& copy : batch.use.copies()) {
          std::ranges::copy(copy.from, memory.data() + copy.to);
        }
        for (const auto& [read, location] : batch.found) {
          ASSERT_TRUE(std::ranges::equal(read->bytes,
                                         std::span(memory.data() + location, read->bytes.size())));
        }
        batch.use.Done();
        batch.found.clear();
        break;
      }
      case 2:
        if (in_use(page.get())) break;
        random() % 2 == 0 ? renew(*page) : static_cast<void>(page = fresh());
        break;
    }
    ASSERT_LE(rows.stats().used_bytes, rows.stats().capacity_bytes);
  }
  const ResidentRowsStats stats = rows.stats();
  EXPECT_GT(stats.hits, 1000);
  EXPECT_GT(stats.copies, 1000);
  EXPECT_GT(stats.passes, 1000);
  EXPECT_GT(stats.evictions, 1000);
}

}  // namespace
}  // namespace sis::cuda
