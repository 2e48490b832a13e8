// Tests which copies are found, made, replaced and abandoned. staged_backend_test and
// tests/conformance test their content.
#include "kernels/cuda/residency/resident_blocks.h"

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

constexpr size_t kSlab = 1024;  // 8 blocks of 128 bytes

// A block that is never read, only named.
struct NamedBlock {
  explicit NamedBlock(size_t size = 128) : bytes(size) {}

  std::vector<std::byte> bytes;
  BlockTag tag;
};

std::optional<size_t> Find(ResidentBlocks::Use& use, const NamedBlock& block) {
  return use.Find(block.bytes, &block.tag);
}

class ResidentBlocksTest : public testing::Test {
 protected:
  // Looks up each block in a separate batch. Returns the number of hits.
  int64_t Read(ResidentBlocks& resident, const std::deque<NamedBlock>& blocks) {
    const int64_t before = resident.stats().hits;
    ResidentBlocks::Use use(&resident);
    for (const NamedBlock& block : blocks) {
      Find(use, block);
      use.Done();
    }
    return resident.stats().hits - before;
  }
};

TEST_F(ResidentBlocksTest, BlocksThatFitAreCopiedOnceAndFoundAfterwards) {
  HostResidentMemory memory(4 * kSlab + 100);
  ResidentBlocks resident(memory, kSlab);
  std::deque<NamedBlock> blocks(32);
  EXPECT_EQ(Read(resident, blocks), 0);
  EXPECT_EQ(Read(resident, blocks), 32);
  EXPECT_EQ(Read(resident, blocks), 32);
  const ResidentBlocksStats stats = resident.stats();
  EXPECT_EQ(stats.capacity_bytes, 4 * kSlab);
  EXPECT_EQ(stats.used_bytes, 4 * kSlab);
  EXPECT_EQ(stats.copies, 32);
  EXPECT_EQ(stats.passes, 0);
  EXPECT_EQ(stats.evictions, 0);
}

TEST_F(ResidentBlocksTest, NewBlocksPushOutTheLeastRecentlyRead) {
  HostResidentMemory memory(4 * kSlab);
  ResidentBlocks resident(memory, kSlab);
  std::deque<NamedBlock> first(16);
  std::deque<NamedBlock> second(16);
  std::deque<NamedBlock> third(16);
  Read(resident, first);
  Read(resident, second);
  EXPECT_EQ(Read(resident, first), 16);
  Read(resident, third);
  EXPECT_EQ(resident.stats().evictions, 16);
  EXPECT_EQ(Read(resident, first), 16);
  EXPECT_EQ(Read(resident, third), 16);
  EXPECT_EQ(Read(resident, second), 0);
}

// Replacing the least recently read slab would find nothing.
TEST_F(ResidentBlocksTest, AStepLargerThanTheMemoryFindsTheBlocksThatFit) {
  HostResidentMemory memory(10 * kSlab);
  ResidentBlocks resident(memory, kSlab);
  std::deque<NamedBlock> step(110);
  Read(resident, step);
  for (int pass = 0; pass < 3; ++pass) EXPECT_GE(Read(resident, step), 72);
  // And the next step takes its location.
  std::deque<NamedBlock> next(80);
  Read(resident, next);
  EXPECT_EQ(Read(resident, next), 80);
}

// Blocks that got no copy at first get one when the resident blocks are no longer read.
TEST_F(ResidentBlocksTest, BlocksThatAreReadEvictUnreadBlocks) {
  HostResidentMemory memory(2 * kSlab);
  ResidentBlocks resident(memory, kSlab);
  std::deque<NamedBlock> old(16);
  std::deque<NamedBlock> blocks(16);
  Read(resident, blocks);
  Read(resident, old);
  EXPECT_EQ(Read(resident, blocks), 0);  // turned away
  EXPECT_EQ(resident.stats().passes, 16);
  EXPECT_EQ(Read(resident, blocks), 0);  // but now copied
  EXPECT_EQ(Read(resident, blocks), 16);
}

TEST_F(ResidentBlocksTest, CopiesOfAFailedBatchAreNeverFound) {
  HostResidentMemory memory(2 * kSlab);
  ResidentBlocks resident(memory, kSlab);
  const NamedBlock block;
  ResidentBlocks::Use use(&resident);
  EXPECT_TRUE(Find(use, block).has_value());
  use.Abandon();
  EXPECT_TRUE(use.uploads().empty());
  EXPECT_EQ(Find(use, block), std::nullopt);
  use.Done();
  for (int i = 0; i < 5; ++i) {
    std::deque<NamedBlock> blocks(16);
    Read(resident, blocks);
  }
  // Only slabs with all 8 copies are evicted.
  EXPECT_EQ(resident.stats().evictions % 8, 0);
  EXPECT_EQ(Find(use, block), std::nullopt);
}

TEST_F(ResidentBlocksTest, BlocksWithoutATagOrLargerThanASlabAreNotKept) {
  HostResidentMemory memory(2 * kSlab);
  ResidentBlocks resident(memory, kSlab);
  ResidentBlocks::Use use(&resident);
  const NamedBlock large(kSlab + 1);
  const NamedBlock block;
  EXPECT_EQ(Find(use, large), std::nullopt);
  EXPECT_EQ(use.Find(block.bytes, nullptr), std::nullopt);
  EXPECT_EQ(resident.stats().copies, 0);
  EXPECT_EQ(resident.stats().used_bytes, 0);
  ResidentBlocks::Use without(nullptr);
  EXPECT_EQ(Find(without, block), std::nullopt);
  without.Done();
}

// For all sizes, less than the largest copy is wasted per slab.
TEST_F(ResidentBlocksTest, BlocksOfAllSizesFillTheMemory) {
  HostResidentMemory memory(8 * kSlab);
  ResidentBlocks resident(memory, kSlab);
  std::mt19937 random(2);
  std::deque<NamedBlock> blocks;
  for (int i = 0; i < 100; ++i)
    blocks.emplace_back(1 + random() % (2 * ResidentBlocks::kAlignment));
  Read(resident, blocks);
  EXPECT_GT(resident.stats().evictions, 0);
  // Except for the slab that is being filled.
  EXPECT_GE(resident.stats().used_bytes, 7 * (kSlab - 2 * ResidentBlocks::kAlignment + 1));
}

// A large block without a copy leaves the rest of a slab to small ones.
TEST_F(ResidentBlocksTest, SmallBlocksFollowALargeOneThatDoesNotFit) {
  HostResidentMemory memory(kSlab);
  ResidentBlocks resident(memory, kSlab);
  const NamedBlock first(kSlab / 2);
  const NamedBlock large(kSlab);
  const NamedBlock small(kSlab / 2);
  ResidentBlocks::Use use(&resident);
  EXPECT_EQ(Find(use, first), 0);
  EXPECT_EQ(Find(use, large), std::nullopt);  // the batch holds the only slab
  EXPECT_EQ(Find(use, small), kSlab / 2);
}

// Several ranges of a block without a copy count as one read, which does not justify a copy.
TEST_F(ResidentBlocksTest, PiecesOfABlockAreReadOnce) {
  HostResidentMemory memory(kSlab);
  ResidentBlocks resident(memory, kSlab);
  std::deque<NamedBlock> first(8);
  std::deque<NamedBlock> second(8);
  Read(resident, first);
  Read(resident, second);
  ResidentBlocks::Use use(&resident);
  for (int piece = 0; piece < 3; ++piece) {
    EXPECT_EQ(Find(use, first[0]), std::nullopt) << piece;
  }
  use.Done();
  EXPECT_EQ(Read(resident, second), 8);
}

// Random batches, several in flight, with blocks of three sizes: locations in use never overlap,
// and found copies have the written content.
TEST_F(ResidentBlocksTest, OffsetsHoldTheCopiedBlocks) {
  constexpr size_t kSlabs = 7;
  HostResidentMemory memory(kSlabs * kSlab);
  const HostResidentMemory::Access access(memory);
  ResidentBlocks resident(memory, kSlab);
  std::mt19937 random(1);
  std::vector<std::unique_ptr<NamedBlock>> blocks(60);
  const auto fresh = [&] {
    auto block = std::make_unique<NamedBlock>(1 + random() % 3 * 150);
    for (std::byte& byte : block->bytes) byte = static_cast<std::byte>(random());
    return block;
  };
  for (auto& block : blocks) block = fresh();

  struct Batch {
    explicit Batch(ResidentBlocks* resident) : use(resident) {}
    ResidentBlocks::Use use;
    std::map<const NamedBlock*, size_t> found;
  };
  std::deque<Batch> batches;
  for (int i = 0; i < 4; ++i) batches.emplace_back(&resident);
  const auto in_use = [&](const NamedBlock* block) {
    return std::ranges::any_of(batches, [&](const Batch& b) { return b.found.contains(block); });
  };
  for (int step = 0; step < 20000; ++step) {
    Batch& batch = batches[random() % batches.size()];
    auto& block = blocks[random() % blocks.size()];
    switch (random() % 8) {
      default: {
        const auto location = Find(batch.use, *block);
        if (!location.has_value()) break;
        ASSERT_LE(*location + block->bytes.size(), kSlabs * kSlab);
        ASSERT_EQ(*location % ResidentBlocks::kAlignment, 0);
        batch.found[block.get()] = *location;
        break;
      }
      case 1: {  // the batch runs
        for (const ResidentBlocks::Use::Upload& copy : batch.use.uploads()) {
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
        if (!in_use(block.get())) block = fresh();
        break;
    }
    ASSERT_LE(resident.stats().used_bytes, resident.stats().capacity_bytes);
  }
  const ResidentBlocksStats stats = resident.stats();
  EXPECT_GT(stats.hits, 1000);
  EXPECT_GT(stats.copies, 1000);
  EXPECT_GT(stats.passes, 1000);
  EXPECT_GT(stats.evictions, 1000);
}

}  // namespace
}  // namespace sis::cuda
