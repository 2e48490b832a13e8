#include "server/shared_memory/segment_registry.h"

#include <gtest/gtest.h>

#include <vector>

namespace sis {
namespace {

constexpr int64_t kPage = 4096;

TEST(SegmentRegistryTest, OffUnlessThereIsALimit) {
  SegmentRegistry registry(0);
  EXPECT_EQ(registry.Lease(1).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(SegmentRegistryTest, NeverMoreThanTheLimit) {
  SegmentRegistry registry(3 * kPage);
  const auto first = registry.Lease(kPage + 1);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(registry.used_bytes(), 2 * kPage);
  EXPECT_EQ(registry.size(), 1);
  for (const uint64_t bytes : {uint64_t{kPage} + 1, uint64_t{1} << 63, UINT64_MAX}) {
    EXPECT_EQ(registry.Lease(bytes).status().code(), absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(registry.Lease(0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(registry.used_bytes(), 2 * kPage);
  EXPECT_TRUE(registry.Lease(1).ok());
}

TEST(SegmentRegistryTest, MemoryCountsUntilTheLastUseEnds) {
  SegmentRegistry registry(kPage);
  std::string name;
  {
    const auto leased = registry.Lease(1);
    ASSERT_TRUE(leased.ok());
    name = (*leased)->name();
  }
  absl::StatusOr<std::shared_ptr<SharedSegment>> used = registry.Find(name, ClientAt::kUnixSocket);
  ASSERT_TRUE(used.ok());
  registry.End(name);
  EXPECT_EQ(registry.Find(name, ClientAt::kUnixSocket).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(registry.size(), 0);
  EXPECT_EQ(registry.used_bytes(), kPage);
  EXPECT_EQ(registry.Lease(1).status().code(), absl::StatusCode::kResourceExhausted);
  char byte = 'x';
  (*used)->Read(0, 1, &byte);
  EXPECT_EQ(byte, 0);
  used->reset();
  EXPECT_EQ(registry.used_bytes(), 0);
  EXPECT_TRUE(registry.Lease(1).ok());
}

TEST(SegmentRegistryTest, OnlyWhoWasToldItsNameFindsIt) {
  SegmentRegistry registry(kPage);
  const auto leased = registry.Lease(1);
  ASSERT_TRUE(leased.ok());
  const SharedSegment& segment = **leased;
  EXPECT_TRUE(registry.Find(segment.name(), ClientAt::kUnixSocket).ok());
  for (const std::string& seen : {segment.object(), segment.object().substr(5)}) {
    EXPECT_EQ(registry.Find(seen, ClientAt::kUnixSocket).status().code(),
              absl::StatusCode::kNotFound);
  }
  EXPECT_EQ(registry.Find(segment.name(), ClientAt::kElsewhere).status().code(),
            absl::StatusCode::kPermissionDenied);
}

TEST(SegmentRegistryTest, ClosingEndsEveryLease) {
  SegmentRegistry registry(8 * kPage);
  std::vector<std::string> names;
  for (int i = 0; i < 3; ++i) {
    const auto leased = registry.Lease(1);
    ASSERT_TRUE(leased.ok());
    names.push_back((*leased)->name());
  }
  registry.End(names[0]);
  registry.Close();
  EXPECT_EQ(registry.used_bytes(), 0);
  registry.Close();
  registry.End(names[1]);
  EXPECT_EQ(registry.Find(names[2], ClientAt::kUnixSocket).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(registry.Lease(1).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(registry.used_bytes(), 0);
}

}  // namespace
}  // namespace sis
