#include "server/memory/arena.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

namespace sis {
namespace {

constexpr size_t kSlab = Arena::kSlabBytes;

TEST(ArenaTest, MapsWholeChunks) {
  EXPECT_EQ(Arena::Map(kSlab - 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Arena::Map(INT64_MAX).status().code(), absl::StatusCode::kResourceExhausted);
  const std::unique_ptr<Arena> arena = *Arena::Map(3 * kSlab - 1);
  const Arena::Allocation first = arena->Allocate(kSlab);
  const Arena::Allocation second = arena->Allocate(kSlab);
  EXPECT_FALSE(first.empty());
  EXPECT_FALSE(second.empty());
  EXPECT_TRUE(arena->Allocate(1).empty()) << "never more than was asked for";
}

TEST(ArenaTest, AnEmptyChunkServesAnySize) {
  const std::unique_ptr<Arena> arena = *Arena::Map(kSlab);
  arena->Populate();
  for (const size_t bytes : {size_t{64}, size_t{1000}, kSlab, size_t{5000}}) {
    std::vector<Arena::Allocation> cells;
    for (;;) {
      Arena::Allocation cell = arena->Allocate(bytes);
      if (cell.empty()) break;
      EXPECT_EQ(cell.bytes().size(), bytes);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(cell.bytes().data()) % Arena::kAlignment, 0);
      cells.push_back(std::move(cell));
    }
    EXPECT_EQ(cells.size(), kSlab / Arena::CellBytes(bytes));
    // While one of them lives, the slab is theirs.
    const Arena::Allocation last = std::move(cells[cells.size() / 2]);
    cells.clear();
    EXPECT_TRUE(arena->Allocate(bytes + 64).empty());
    EXPECT_EQ(arena->Allocate(bytes).empty(), bytes == kSlab);
  }
}

TEST(ArenaTest, BlocksAreGivenBackOnce) {
  const std::unique_ptr<Arena> arena = *Arena::Map(kSlab);
  Arena::Allocation a = arena->Allocate(kSlab);
  Arena::Allocation b = std::move(a);
  EXPECT_FALSE(b.empty());
  EXPECT_TRUE(arena->Allocate(kSlab).empty());
  b = Arena::Allocation();
  EXPECT_FALSE(arena->Allocate(kSlab).empty());
}

// Whether the system has memory behind a slab.
bool IsResident(const std::byte* address) {
  const auto page = reinterpret_cast<uintptr_t>(address) / 4096 * 4096;
  unsigned char resident = 0;
  EXPECT_EQ(mincore(reinterpret_cast<void*>(page), 1, &resident), 0);
  return (resident & 1) != 0;
}

TEST(ArenaTest, WhatIsSetAsideIsGivenToTheSystem) {
  const std::unique_ptr<Arena> arena = *Arena::Map(3 * kSlab);
  arena->Populate();
  Arena::Allocation a = arena->Allocate(kSlab);
  const Arena::Allocation b = arena->Allocate(1000);
  const std::byte* const memory = a.bytes().data();
  EXPECT_EQ(arena->used_bytes(), kSlab + Arena::CellBytes(1000));
  EXPECT_TRUE(IsResident(memory));
  arena->SetAside(kSlab + 1);  // two slabs, but only one is unused
  EXPECT_TRUE(arena->Allocate(kSlab).empty());
  EXPECT_FALSE(arena->Allocate(1000).empty()) << "slabs in use stay";
  EXPECT_TRUE(IsResident(memory));
  a = Arena::Allocation();  // the second
  EXPECT_FALSE(IsResident(memory));
  EXPECT_TRUE(arena->Allocate(kSlab).empty());
  EXPECT_TRUE(IsResident(b.bytes().data()));
  arena->SetAside(kSlab);
  const Arena::Allocation back = arena->Allocate(kSlab);
  EXPECT_FALSE(back.empty());
  EXPECT_TRUE(arena->Allocate(kSlab).empty());
  arena->SetAside(-1);
  EXPECT_FALSE(arena->Allocate(kSlab).empty());
}

// Cells of three sizes come and go in threads of their own; none is ever another's.
TEST(ArenaTest, RandomBlocksDontOverlap) {
  const std::unique_ptr<Arena> arena = *Arena::Map(6 * kSlab);
  std::atomic<int> refused = 0;
  const auto work = [&](uint8_t seed) {
    std::mt19937 random(seed);
    std::vector<Arena::Allocation> held;
    const auto intact = [seed](const Arena::Allocation& cell) {
      return std::ranges::all_of(cell.bytes(),
                                 [seed](std::byte b) { return b == std::byte{seed}; });
    };
    for (int i = 0; i < 3000; ++i) {
      if (held.empty() || random() % 100 < (i / 500 % 2 == 0 ? 70 : 30)) {
        constexpr size_t kSizes[] = {3008, 20000, 130000};
        Arena::Allocation cell = arena->Allocate(kSizes[random() % 3]);
        if (cell.empty()) {
          ++refused;
          continue;
        }
        std::ranges::fill(cell.bytes(), std::byte{seed});
        held.push_back(std::move(cell));
      } else {
        std::swap(held[random() % held.size()], held.back());
        ASSERT_TRUE(intact(held.back()));
        held.pop_back();
      }
    }
    for (const Arena::Allocation& cell : held) ASSERT_TRUE(intact(cell));
  };
  std::vector<std::thread> threads;
  for (uint8_t seed = 1; seed <= 3; ++seed) threads.emplace_back(work, seed);
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(refused, 0) << "it never was full";
  std::vector<Arena::Allocation> all;
  for (int i = 0; i < 6; ++i) {
    all.push_back(arena->Allocate(kSlab));
    EXPECT_FALSE(all.back().empty()) << "every slab came back";
  }
}

}  // namespace
}  // namespace sis
