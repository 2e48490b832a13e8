#include "server/memory/arena.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>

namespace sis {
namespace {

constexpr size_t kChunk = Arena::kChunkBytes;

TEST(ArenaTest, MapsWholeChunks) {
  EXPECT_EQ(Arena::Map(kChunk - 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Arena::Map(INT64_MAX).status().code(), absl::StatusCode::kResourceExhausted);
  const std::unique_ptr<Arena> arena = *Arena::Map(3 * kChunk - 1);
  const Arena::Block first = arena->Allocate(kChunk);
  const Arena::Block second = arena->Allocate(kChunk);
  EXPECT_FALSE(first.empty());
  EXPECT_FALSE(second.empty());
  EXPECT_TRUE(arena->Allocate(1).empty()) << "never more than was asked for";
}

TEST(ArenaTest, AnEmptyChunkServesAnySize) {
  const std::unique_ptr<Arena> arena = *Arena::Map(kChunk);
  arena->Populate();
  for (const size_t bytes : {size_t{64}, size_t{1000}, kChunk, size_t{5000}}) {
    std::vector<Arena::Block> blocks;
    for (;;) {
      Arena::Block block = arena->Allocate(bytes);
      if (block.empty()) break;
      EXPECT_EQ(block.bytes().size(), bytes);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(block.bytes().data()) % Arena::kAlignment, 0);
      blocks.push_back(std::move(block));
    }
    EXPECT_EQ(blocks.size(), kChunk / Arena::BlockBytes(bytes));
    // While one of them lives, the chunk is theirs.
    const Arena::Block last = std::move(blocks[blocks.size() / 2]);
    blocks.clear();
    EXPECT_TRUE(arena->Allocate(bytes + 64).empty());
    EXPECT_EQ(arena->Allocate(bytes).empty(), bytes == kChunk);
  }
}

TEST(ArenaTest, BlocksAreGivenBackOnce) {
  const std::unique_ptr<Arena> arena = *Arena::Map(kChunk);
  Arena::Block a = arena->Allocate(kChunk);
  Arena::Block b = std::move(a);
  EXPECT_FALSE(b.empty());
  EXPECT_TRUE(arena->Allocate(kChunk).empty());
  b = Arena::Block();
  EXPECT_FALSE(arena->Allocate(kChunk).empty());
}

// Whether the system has memory behind a chunk.
bool IsResident(const std::byte* address) {
  const auto page = reinterpret_cast<uintptr_t>(address) / 4096 * 4096;
  unsigned char resident = 0;
  EXPECT_EQ(mincore(reinterpret_cast<void*>(page), 1, &resident), 0);
  return (resident & 1) != 0;
}

TEST(ArenaTest, WhatIsSetAsideIsGivenToTheSystem) {
  const std::unique_ptr<Arena> arena = *Arena::Map(3 * kChunk);
  arena->Populate();
  Arena::Block a = arena->Allocate(kChunk);
  const Arena::Block b = arena->Allocate(1000);
  const std::byte* const memory = a.bytes().data();
  EXPECT_EQ(arena->used_bytes(), kChunk + Arena::BlockBytes(1000));
  EXPECT_TRUE(IsResident(memory));
  arena->SetAside(kChunk + 1);  // two chunks, but only one is unused
  EXPECT_TRUE(arena->Allocate(kChunk).empty());
  EXPECT_FALSE(arena->Allocate(1000).empty()) << "chunks in use stay";
  EXPECT_TRUE(IsResident(memory));
  a = Arena::Block();  // the second
  EXPECT_FALSE(IsResident(memory));
  EXPECT_TRUE(arena->Allocate(kChunk).empty());
  EXPECT_TRUE(IsResident(b.bytes().data()));
  arena->SetAside(kChunk);
  const Arena::Block back = arena->Allocate(kChunk);
  EXPECT_FALSE(back.empty());
  EXPECT_TRUE(arena->Allocate(kChunk).empty());
  arena->SetAside(-1);
  EXPECT_FALSE(arena->Allocate(kChunk).empty());
}

// Blocks of three sizes come and go in threads of their own; none is ever another's.
TEST(ArenaTest, RandomBlocksDontOverlap) {
  const std::unique_ptr<Arena> arena = *Arena::Map(6 * kChunk);
  std::atomic<int> refused = 0;
  const auto work = [&](uint8_t seed) {
    std::mt19937 random(seed);
    std::vector<Arena::Block> held;
    const auto intact = [seed](const Arena::Block& block) {
      return std::ranges::all_of(block.bytes(),
                                 [seed](std::byte b) { return b == std::byte{seed}; });
    };
    for (int i = 0; i < 3000; ++i) {
      if (held.empty() || random() % 100 < (i / 500 % 2 == 0 ? 70 : 30)) {
        constexpr size_t kSizes[] = {3008, 20000, 130000};
        Arena::Block block = arena->Allocate(kSizes[random() % 3]);
        if (block.empty()) {
          ++refused;
          continue;
        }
        std::ranges::fill(block.bytes(), std::byte{seed});
        held.push_back(std::move(block));
      } else {
        std::swap(held[random() % held.size()], held.back());
        ASSERT_TRUE(intact(held.back()));
        held.pop_back();
      }
    }
    for (const Arena::Block& block : held) ASSERT_TRUE(intact(block));
  };
  std::vector<std::thread> threads;
  for (uint8_t seed = 1; seed <= 3; ++seed) threads.emplace_back(work, seed);
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(refused, 0) << "it never was full";
  std::vector<Arena::Block> all;
  for (int i = 0; i < 6; ++i) {
    all.push_back(arena->Allocate(kChunk));
    EXPECT_FALSE(all.back().empty()) << "every chunk came back";
  }
}

}  // namespace
}  // namespace sis
