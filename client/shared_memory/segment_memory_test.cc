// Which parts of a segment are in use, against a map of its bytes.
#include "client/shared_memory/segment_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace sis {
namespace {

constexpr size_t kBytes = 4096;

std::shared_ptr<SegmentMemory> MakeMemory() {
  void* const memory =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(memory, MAP_FAILED);
  return std::make_shared<SegmentMemory>(std::span(static_cast<std::byte*>(memory), kBytes));
}

// The longest row of units of 64 bytes that are in no range.
size_t LongestFree(const std::vector<std::unique_ptr<SegmentAllocation>>& ranges) {
  std::vector<bool> used(kBytes / 64);
  for (const auto& range : ranges) {
    for (size_t i = 0; i < range->bytes().size(); i += 64) used[(range->offset() + i) / 64] = true;
  }
  size_t longest = 0, length = 0;
  for (const bool unit : used) {
    length = unit ? 0 : length + 1;
    longest = std::max(longest, length);
  }
  return longest * 64;
}

TEST(SegmentMemoryTest, RangesAreApartAndWhatIsFreeIsFound) {
  const std::shared_ptr<SegmentMemory> memory = MakeMemory();
  std::vector<std::unique_ptr<SegmentAllocation>> ranges;
  std::mt19937 random(1);
  for (int step = 0; step < 20000; ++step) {
    const size_t free = LongestFree(ranges);
    const size_t bytes = random() % 700;
    switch (random() % 5) {
      case 0:
      case 1: {
        std::unique_ptr<SegmentAllocation> range = memory->Take(bytes);
        ASSERT_EQ(range != nullptr, std::max<size_t>(bytes, 1) <= free) << bytes;
        if (range == nullptr) break;
        EXPECT_EQ(range->bytes().size(), std::max<size_t>(64, (bytes + 63) / 64 * 64));
        ranges.push_back(std::move(range));
        break;
      }
      case 2: {
        std::unique_ptr<SegmentAllocation> range = memory->TakeLargest();
        ASSERT_EQ(range != nullptr, free > 0);
        if (range == nullptr) break;
        EXPECT_EQ(range->bytes().size(), free);
        range->Shrink(bytes);
        EXPECT_EQ(range->bytes().size(), std::min(free, (bytes + 63) / 64 * 64));
        ranges.push_back(std::move(range));
        break;
      }
      default:
        if (ranges.empty()) break;
        std::swap(ranges[random() % ranges.size()], ranges.back());
        ranges.pop_back();
    }
    std::set<size_t> units;
    for (const auto& range : ranges) {
      ASSERT_EQ(range->bytes().data(), memory->bytes().data() + range->offset());
      ASSERT_EQ(range->offset() % 64, 0);
      ASSERT_LE(range->offset() + range->bytes().size(), kBytes);
      for (size_t i = 0; i < range->bytes().size(); i += 64) {
        ASSERT_TRUE(units.insert(range->offset() + i).second) << "in two ranges";
      }
    }
  }
  ranges.clear();
  EXPECT_EQ(memory->TakeLargest()->bytes().size(), kBytes);
}

TEST(SegmentMemoryTest, WhatIsAbandonedIsNeverUsedAgain) {
  const std::shared_ptr<SegmentMemory> memory = MakeMemory();
  const std::unique_ptr<SegmentAllocation> first = memory->Take(1024);
  memory->TakeLargest()->Abandon();
  EXPECT_EQ(memory->TakeLargest(), nullptr);
  EXPECT_EQ(memory->Take(1), nullptr);
}

TEST(SegmentMemoryTest, ARangeKeepsTheMemory) {
  std::shared_ptr<SegmentMemory> memory = MakeMemory();
  const std::unique_ptr<SegmentAllocation> range = memory->Take(kBytes);
  memory.reset();
  std::ranges::fill(range->bytes(), std::byte{7});
  EXPECT_EQ(range->bytes().back(), std::byte{7});
}

}  // namespace
}  // namespace sis
