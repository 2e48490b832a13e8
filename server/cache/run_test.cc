#include "server/cache/run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "server/cache/inspection.h"
#include "server/testing/cache_fixture.h"
#include "server/testing/record_generator.h"

namespace sis {
namespace {

using testing::HasSubstr;

class RunTest : public testing::Test {
 protected:
  // Appends positions [0, count) with policy version `version`.
  v1::Ack Append(sis::Run& run, const std::string& id, uint32_t count = 1, uint64_t version = 0) {
    return AppendBlock(cache_, run, generator_.NextRecords(count).Block(id, version));
  }
  // Returns the reason why the sequence is missing, or nullopt. Does not keep the sequence.
  static std::optional<MissingReason> ReasonOf(sis::Run& run, const std::string& id) {
    const sis::Run::Found found = run.Find({id, 0});
    const auto* reason = std::get_if<MissingReason>(&found);
    return reason == nullptr ? std::nullopt : std::optional(*reason);
  }
  static bool Holds(sis::Run& run, const std::string& id) { return !ReasonOf(run, id).has_value(); }
  static void Keep(sis::Run& run, const std::vector<std::string>& ids, absl::Duration length) {
    std::vector<SequenceName> names;
    for (const std::string& id : ids) names.push_back({id, 0});
    run.Keep(names, length);
  }

  Cache cache_;
  RecordGenerator generator_{4, 1000, 1};
};

// Checks what docs/configuration.md says of --inspected_bytes ("Inspected values").
TEST_F(RunTest, InspectionHasTheRoomThatIsDocumented) {
  constexpr int kSlots = 10;
  EXPECT_EQ(cache_.CreateRun("r", SmallConfig(kSlots))->inspection().kept_positions(), 6528);
  Limits limits;
  limits.inspected_bytes = 244'000'000;
  Cache cache(int64_t{1} << 26, limits);
  Inspection& inspection = cache.CreateRun("r", SmallConfig(kSlots))->inspection();
  constexpr uint32_t kPositions = 65'536, kAtOnce = 4096;
  ASSERT_GE(inspection.kept_positions(), kPositions);
  for (uint32_t first = 0; first < kPositions; first += kAtOnce) {
    InspectedPositions part(kSlots);
    part.Resize(kAtOnce);
    std::ranges::fill(part.decisions, Decision::kAccepted);
    inspection.Record({"long", 0}, {1, 1, first, std::move(part)});
  }
  const auto kept = inspection.Find({"long", 0});
  ASSERT_TRUE(kept.has_value());
  EXPECT_EQ(kept->positions.size(), kPositions);
  EXPECT_EQ(kept->cut_end, 0);
}

TEST_F(RunTest, PagesOfTheListHoldEachSequenceOnceInOrder) {
  const auto run = cache_.CreateRun("r", SmallConfig());
  std::set<SequenceName> names;
  for (int i = 0; i < 200; ++i) {
    const std::string id = std::to_string(i * 7919 % 211);
    Append(*run, id, 1 + i % 3);
    names.insert({id, 0});
  }
  const int64_t examined = run->examined();
  for (const size_t limit : {1, 7, 64, 199, 200, 1000}) {
    std::vector<SequenceName> listed;
    std::optional<SequenceName> after;
    for (;;) {
      const std::vector<SequenceDescription> page = run->ListSequences(after, limit);
      ASSERT_LE(page.size(), limit);
      for (const SequenceDescription& sequence : page) listed.push_back(sequence.name);
      if (page.size() < limit) break;
      after = page.back().name;
    }
    EXPECT_EQ(listed, std::vector<SequenceName>(names.begin(), names.end())) << limit;
  }
  // This is no use of the sequences.
  EXPECT_EQ(run->Describe().unread_sequences, 200);
  EXPECT_EQ(run->examined(), examined);
}

TEST_F(RunTest, WithoutTimeToLiveNothingExpires) {
  const auto run = cache_.CreateRun("r", SmallConfig());
  Append(*run, "a");
  cache_.clock.Advance(absl::Hours(24 * 365));
  run->DropExpired();
  EXPECT_TRUE(Holds(*run, "a"));
}

TEST_F(RunTest, SequencesInUseAreNeitherEvictedNorExpired) {
  v1::RunConfig config = SmallConfig();
  config.set_time_to_live_seconds(1);
  config.set_max_staleness(0);
  const auto run = cache_.CreateRun("r", config);
  Append(*run, "a");
  sis::Run::Found held = run->Find({"a", 0});
  cache_.clock.Advance(absl::Seconds(100));
  run->DropExpired();
  EXPECT_FALSE(run->EvictOldest());
  EXPECT_EQ(*run->AdvanceVersion(5), 0);
  EXPECT_EQ(run->Describe().sequences, 1);
  held = MissingReason::kNeverArrived;
  run->DropExpired();
  EXPECT_EQ(run->Describe().sequences, 0);
}

TEST_F(RunTest, ADeferredSequenceIsEvictedOnceItIsIdle) {
  v1::RunConfig config = SmallConfig();
  config.set_evict_unread(true);
  const auto run = cache_.CreateRun("r", config);
  std::vector<sis::Run::Found> in_use;
  for (const char* id : {"a", "b", "c"}) {
    Append(*run, id);
    in_use.push_back(run->Find({id, 0}));
    cache_.clock.Advance(absl::Seconds(1));
  }
  Append(*run, "d");
  EXPECT_TRUE(run->EvictOldest());
  EXPECT_EQ(ReasonOf(*run, "d"), MissingReason::kEvicted);
  EXPECT_FALSE(run->EvictOldest());
  Append(*run, "e");
  EXPECT_TRUE(Holds(*run, "a")) << "a use";
  in_use.clear();
  for (const char* evicted : {"b", "c", "e", "a"}) {
    EXPECT_TRUE(run->EvictOldest());
    EXPECT_EQ(ReasonOf(*run, evicted), MissingReason::kEvicted) << evicted;
  }
}

// A quarter of n sequences is kept, and a quarter is in use. The cost of making room must not
// depend on n.
TEST_F(RunTest, ExaminesFewOfManySequences) {
  constexpr int kAppends = 100;
  const auto examined = [&](int n) {
    v1::RunConfig config = SmallConfig();
    config.set_time_to_live_seconds(1e6);
    config.set_max_staleness(1);
    Cache cache(int64_t{1} << 30);
    const auto run = cache.CreateRun("r", config);
    const Records records = generator_.NextRecords(1);
    std::vector<SequenceName> kept;
    std::vector<sis::Run::Found> in_use;
    for (int i = 0; i < n; ++i) {
      const std::string id = std::to_string(i);
      EXPECT_EQ(AppendBlock(cache, *run, records.Block(id, 9)).code(), 0);
      if (i % 4 == 0) kept.push_back({id, 0});
      if (i % 4 == 1) in_use.push_back(run->Find({id, 0}));
    }
    run->Keep(kept, absl::Hours(1));
    EXPECT_TRUE(run->AdvanceVersion(10).ok());
    // Each is examined once for its version, and once when it is found in use.
    const ByteBudget& budget = cache.registry.budget();
    const auto make_room = [&] {
      const int64_t bytes = budget.limit() - budget.used() + 1;
      EXPECT_EQ(cache.registry.MakeRoom(*run, bytes, Evict::kUnread), nullptr);
    };
    make_room();
    const int64_t before = run->examined();
    for (int i = 0; i < kAppends; ++i) {
      make_room();
      EXPECT_EQ(AppendBlock(cache, *run, records.Block("n" + std::to_string(i), 9)).code(), 0);
      EXPECT_TRUE(run->AdvanceVersion(10).ok());
    }
    EXPECT_EQ(run->Describe().sequences, n - 1);
    return run->examined() - before;
  };
  const int64_t few = examined(1000);
  EXPECT_EQ(examined(8000), few);
  EXPECT_LE(few, kAppends * 200) << "some of those in use, at each search";
}

TEST_F(RunTest, RemembersWhyOnlySoMany) {
  const auto run = cache_.CreateRun("r", SmallConfig());
  for (int i = 0; i <= kDroppedKept; ++i) {
    ASSERT_TRUE(run->FindOrCreate({std::to_string(i), 0}).ok());
    ASSERT_TRUE(run->Release({std::to_string(i), 0}));
  }
  EXPECT_EQ(ReasonOf(*run, "0"), MissingReason::kNeverArrived);
  EXPECT_EQ(ReasonOf(*run, "1"), MissingReason::kReleased);
  EXPECT_EQ(ReasonOf(*run, std::to_string(kDroppedKept)), MissingReason::kReleased);
}

TEST_F(RunTest, DescribesItself) {
  v1::RunConfig config = SmallConfig();
  config.set_task("addition");
  const auto run = cache_.CreateRun("r", config, 3);
  Append(*run, "a", 10);
  Append(*run, "b", 65);
  ASSERT_TRUE(std::get<std::shared_ptr<Sequence>>(run->Find({"b", 0}))->Seal(65).ok());
  Keep(*run, {"a"}, absl::Seconds(60));
  ASSERT_TRUE(run->AdvanceVersion(12).ok());
  const v1::Run described = ToMessage(run->Describe());
  EXPECT_EQ(described.run_id(), "r");
  EXPECT_EQ(described.incarnation(), 3);
  config.set_log_prob_encoding(v1::LOG_PROB_ENCODING_FIXED16);  // the default
  EXPECT_EQ(described.config().SerializeAsString(), config.SerializeAsString());
  EXPECT_EQ(described.policy_version(), 12);
  EXPECT_EQ(described.sequences(), 2);
  EXPECT_EQ(described.sealed_sequences(), 1);
  EXPECT_EQ(described.positions(), 75);
  EXPECT_EQ(described.bytes(), run->budget().used());
  EXPECT_EQ(described.kept_sequences(), 1);
  EXPECT_FALSE(described.has_last_draw());
  run->steps().Claim(9, 1, {0, 1});
  EXPECT_EQ(run->Describe().last_draw, 9);
}

}  // namespace
}  // namespace sis
