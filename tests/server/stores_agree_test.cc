// What the API says of leases and releases, with every store.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/store/parse_store.h"
#include "server/testing/backing.h"
#include "server/testing/record_generator.h"
#include "server/testing/replica.h"

namespace sis {
namespace {

constexpr int kSlots = 2;

class StoresAgreeTest : public ::testing::TestWithParam<std::string> {
 protected:
  StoresAgreeTest() {
    if (GetParam() == "rocksdb") backing_ = std::make_unique<RocksDbBacking>();
    if (GetParam() == "memcached") backing_ = std::make_unique<MemcachedBacking>();
    Start();
  }

  void Start() {
    replica_.reset();
    auto store = backing_ == nullptr ? nullptr : Open(*backing_);
    replica_ = std::make_unique<Replica>(std::move(store), LosslessConfig(kSlots));
  }

  absl::StatusCode Append(const std::string& id) {
    return static_cast<absl::StatusCode>(replica_->AppendBlock(records_.Block(id)).code());
  }
  bool IsThere(const std::string& id) {
    return std::holds_alternative<std::shared_ptr<Sequence>>(replica_->Find(id));
  }

  const Records records_ = RecordGenerator(kSlots, 1000, 1).NextRecords(10);
  std::unique_ptr<Backing> backing_;
  std::unique_ptr<Replica> replica_;
};

INSTANTIATE_TEST_SUITE_P(Stores, StoresAgreeTest,
                         ::testing::Values("memory", "rocksdb", "memcached"),
                         [](const auto& info) { return info.param; });

TEST_P(StoresAgreeTest, WhatWasNeverSeenIsUnknownAndMayCome) {
  EXPECT_EQ(replica_->Release({"a"})->sequences, 0);
  EXPECT_EQ(replica_->Find("a"), Run::Found(MissingReason::kNeverArrived));
  EXPECT_EQ(Append("a"), absl::StatusCode::kOk);
  EXPECT_TRUE(IsThere("a"));
  EXPECT_EQ(replica_->Release({"b", "a", "a"})->sequences, 1);
  EXPECT_EQ(replica_->Release({"a"})->sequences, 0);
  EXPECT_EQ(replica_->Find("a"), Run::Found(MissingReason::kReleased));
  EXPECT_EQ(Append("a"), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Append("b"), absl::StatusCode::kOk);
}

TEST_P(StoresAgreeTest, WhatIsLeasedGoesWithItsLastLease) {
  ASSERT_EQ(Append("a"), absl::StatusCode::kOk);
  const uint64_t first = replica_->Lease("a", absl::Seconds(60));
  const uint64_t second = replica_->Lease("a", absl::Seconds(60));
  const auto released = replica_->Release({"a"}, {first});
  EXPECT_EQ(released->sequences, 1);
  EXPECT_EQ(released->leases, 1);
  EXPECT_EQ(replica_->Release({"a"}, {first})->sequences, 0);
  EXPECT_TRUE(IsThere("a"));
  EXPECT_EQ(Append("a"), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(IsThere("a"));
  EXPECT_EQ(replica_->Release({}, {second})->leases, 1);
  EXPECT_EQ(replica_->Find("a"), Run::Found(MissingReason::kReleased));
}

TEST_P(StoresAgreeTest, ALeaseThatHasEndedIsRefused) {
  ASSERT_EQ(Append("a"), absl::StatusCode::kOk);
  const uint64_t expired = replica_->Lease("a", absl::Seconds(60));
  const uint64_t released = replica_->Lease("a", absl::Seconds(600));
  EXPECT_TRUE(replica_->run().RenewLease(expired).ok());
  EXPECT_EQ(replica_->Release({}, {released})->leases, 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(replica_->run().RenewLease(released)));
  replica_->clock().Advance(absl::Seconds(61));
  for (const bool noticed : {false, true}) {
    if (noticed) replica_->registry().DropExpired();
    EXPECT_TRUE(absl::IsFailedPrecondition(replica_->run().RenewLease(expired))) << noticed;
  }
}

// Where room is short, leases end once nobody has read of their run for long, whoever still
// appends.
TEST_P(StoresAgreeTest, OnlyReadingKeepsLeasesFromEndingEarly) {
  for (const char* id : {"leased", "open", "more", "longer", "evicted", "released"}) {
    ASSERT_EQ(Append(id), absl::StatusCode::kOk);
  }
  const auto change = [&](void (*make)(v1::AppendEntry&)) {
    v1::AppendEntry entry;
    make(entry);
    EXPECT_EQ(replica_->Append(entry).code(), 0) << entry.ShortDebugString();
  };
  const std::vector<std::pair<const char*, std::function<void()>>> others = {
      {"nothing", [] {}},
      {"a new sequence", [&] { EXPECT_EQ(Append("new"), absl::StatusCode::kOk); }},
      {"more of one that is there",
       [&] { EXPECT_EQ(replica_->AppendBlock(records_.Block("more", 10, 0, 0, 5)).code(), 0); }},
      {"what is there already", [&] { EXPECT_EQ(Append("open"), absl::StatusCode::kOk); }},
      {"the leased one", [&] { EXPECT_EQ(Append("leased"), absl::StatusCode::kOk); }},
      {"a truncation",
       [&] {
         change([](v1::AppendEntry& entry) {
           entry.mutable_truncate()->mutable_sequence()->set_id("longer");
           entry.mutable_truncate()->set_length(5);
         });
       }},
      {"a seal",
       [&] {
         change([](v1::AppendEntry& entry) {
           entry.mutable_seal()->mutable_sequence()->set_id("open");
           entry.mutable_seal()->set_length(10);
         });
       }},
      {"what only the store has, if there is one",
       [&] {
         while (replica_->run().EvictOldest()) {
         }
         Append("evicted");
       }},
      {"a release",
       [&] {
         EXPECT_TRUE(replica_->Release({"released", "never there"}).ok());
       }},
      {"a policy version", [&] { EXPECT_TRUE(replica_->AdvanceVersion(1).ok()); }},
      {"a look", [&] { replica_->run().Describe(); }},
  };
  uint64_t lease = 0;
  const std::vector<std::pair<const char*, std::function<void()>>> readers = {
      {"finding what is leased", [&] { EXPECT_TRUE(IsThere("leased")); }},
      {"finding something else", [&] { EXPECT_FALSE(IsThere("never there")); }},
      {"the lease", [&] { EXPECT_TRUE(replica_->run().RenewLease(lease).ok()); }},
      {"another lease", [&] { replica_->Lease("leased", absl::Hours(1)); }},
  };
  const auto ends_although = [&](const std::function<void()>& something) {
    lease = replica_->Lease("leased", absl::Hours(1));
    replica_->clock().Advance(replica_->run().limits().lease_absence);
    EXPECT_FALSE(replica_->run().EndAbandonedLeases());
    something();
    replica_->clock().Advance(absl::Seconds(1));
    return replica_->run().EndAbandonedLeases();
  };
  for (const auto& [what, something] : others) EXPECT_TRUE(ends_although(something)) << what;
  for (const auto& [what, something] : readers) EXPECT_FALSE(ends_although(something)) << what;
}

// Where other servers lease the same sequences, a lease that was never here may be theirs.
TEST_P(StoresAgreeTest, ALeaseOfAnotherServerIsAcceptedWhereThereAreOthers) {
  const absl::Status unknown = replica_->run().RenewLease(12345);
  EXPECT_EQ(unknown.ok(), GetParam() == "memcached");
  EXPECT_EQ(absl::IsFailedPrecondition(unknown), GetParam() != "memcached");
  ASSERT_EQ(Append("a"), absl::StatusCode::kOk);
  const uint64_t lease = replica_->Lease("a", absl::Seconds(60));
  Start();
  EXPECT_EQ(replica_->run().RenewLease(lease).ok(), GetParam() == "memcached") << "an earlier life";
}

}  // namespace
}  // namespace sis
