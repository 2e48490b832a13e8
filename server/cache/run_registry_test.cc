#include "server/cache/run_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/cache/inspection.h"
#include "server/testing/cache_fixture.h"
#include "server/testing/record_generator.h"

namespace sis {
namespace {

using testing::HasSubstr;

v1::CreateRunRequest Request(const std::string& id, uint64_t incarnation = 0) {
  return CreateRequest(id, SmallConfig(), incarnation);
}

// Returns the bytes charged for a sequence of these records with a short id.
int64_t BytesOfSequence(const Records& records) {
  Cache cache;
  const auto run = cache.CreateRun("r", SmallConfig());
  EXPECT_EQ(AppendBlock(cache, *run, records.Block("a")).code(), 0);
  return run->budget().used();
}

TEST(RunRegistryTest, IncarnationsFollowEachOther) {
  Cache cache;
  RunRegistry& registry = cache.registry;
  EXPECT_EQ(registry.Find("r").status().code(), absl::StatusCode::kNotFound);

  const auto first = cache.runs.Create(Request("r"));
  ASSERT_TRUE(first.ok());
  EXPECT_TRUE(first->created);
  EXPECT_EQ(first->run->incarnation(), 1);
  for (const uint64_t same : {0, 1}) {
    const auto again = cache.runs.Create(Request("r", same));
    ASSERT_TRUE(again.ok());
    EXPECT_FALSE(again->created);
    EXPECT_EQ(again->run, first->run);
    EXPECT_EQ(*registry.Find("r", same), first->run);
  }

  v1::RunConfig other = SmallConfig();
  other.set_seed(99);
  const auto next = cache.runs.Create(CreateRequest("r", other, 5));
  ASSERT_TRUE(next.ok()) << "a new incarnation may have another config";
  EXPECT_TRUE(next->created);
  EXPECT_EQ(next->run->incarnation(), 5);
  EXPECT_EQ(*registry.Find("r"), next->run);
  EXPECT_EQ(registry.Find("r", 1).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(registry.Find("r", 6).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(cache.runs.Create(CreateRequest("r", other, 4)).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(cache.runs.Create(CreateRequest("r", other))->run, next->run);

  EXPECT_EQ(cache.runs.Create(Request("new", 7))->run->incarnation(), 7);
}

TEST(RunRegistryTest, AnotherConfigNamesTheFieldThatDiffers) {
  Cache cache;
  v1::RunConfig config = SmallConfig();
  ASSERT_TRUE(cache.runs.Create(CreateRequest("r", config)).ok());
  const auto message_of = [&](auto change) {
    v1::RunConfig changed = config;
    change(changed);
    const absl::Status status = cache.runs.Create(CreateRequest("r", changed, 1)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
    return std::string(status.message());
  };
  EXPECT_THAT(message_of([](auto& c) { c.set_seed(8); }), HasSubstr("seed: 7 -> 8"));
  EXPECT_THAT(message_of([](auto& c) { c.set_top_k(5); }), HasSubstr("top_k: 4 -> 5"));
  EXPECT_THAT(message_of([](auto& c) { c.set_max_staleness(0); }), HasSubstr("max_staleness"));
  EXPECT_THAT(message_of([](auto& c) { c.set_byte_quota(9); }), HasSubstr("byte_quota"));
  EXPECT_THAT(message_of([](auto& c) { c.set_model("m"); }), HasSubstr("model"));
  EXPECT_THAT(message_of([](auto& c) { c.set_mass(0.97); }), HasSubstr("mass: 0 -> 0.97"));
}

TEST(RunRegistryTest, BadConfigsAreRefusedByName) {
  Cache cache;
  const auto refused = [&](const std::string& field, auto change) {
    v1::CreateRunRequest request = Request("r");
    change(request, *request.mutable_config());
    const absl::Status status = cache.runs.Create(request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_THAT(std::string(status.message()), HasSubstr(field));
  };
  for (const std::string& id : {std::string(), std::string(257, 'a'), std::string("a b"),
                                std::string("a/b"), std::string("\xc3\xa9")}) {
    refused("run_id", [&](auto& request, auto&) { request.set_run_id(id); });
  }
  for (const uint32_t size : {0u, (1u << 24) + 1, UINT32_MAX}) {
    refused("config.vocabulary_size " + std::to_string(size),
            [&](auto&, auto& config) { config.set_vocabulary_size(size); });
  }
  for (const uint32_t top_k : {0u, 129u, UINT32_MAX}) {
    refused("config.top_k " + std::to_string(top_k),
            [&](auto&, auto& config) { config.set_top_k(top_k); });
  }
  refused("config.top_k 21 is above config.vocabulary_size 20", [&](auto&, auto& config) {
    config.set_vocabulary_size(20);
    config.set_top_k(21);
  });
  for (const double seconds : {-1.0, HUGE_VAL, static_cast<double>(NAN)}) {
    refused("config.time_to_live_seconds",
            [&](auto&, auto& config) { config.set_time_to_live_seconds(seconds); });
  }
  for (const double mass : {-0.5, 1.5, static_cast<double>(NAN)}) {
    refused("config.mass", [&](auto&, auto& config) { config.set_mass(mass); });
  }
  const std::string long_label(257, 'x');
  refused("config.task", [&](auto&, auto& config) { config.set_task(long_label); });
  refused("config.algorithm", [&](auto&, auto& config) { config.set_algorithm(long_label); });
  refused("config.model", [&](auto&, auto& config) { config.set_model(long_label); });
  EXPECT_TRUE(cache.registry.List().empty());

  v1::RunConfig extreme = SmallConfig(128);
  extreme.set_vocabulary_size(1 << 24);
  extreme.set_task(std::string(256, 'x'));
  EXPECT_TRUE(cache.runs.Create(CreateRequest(std::string(256, 'a'), extreme)).ok());
}

TEST(RunRegistryTest, ARunIsItsOwnersAndAnAdmins) {
  Cache cache;
  const Caller alice{.identity = "alice", .uses_all_runs = false, .supersedes = true};
  const Caller worker{.identity = "alice", .uses_all_runs = false, .supersedes = false};
  const Caller bob{.identity = "bob", .uses_all_runs = false, .supersedes = true};
  const Caller admin{.identity = "carol"};
  const auto hers = cache.runs.Create(Request("r"), alice);
  ASSERT_TRUE(hers.ok()) << hers.status();
  EXPECT_EQ(hers->run->config().owner, "alice");
  v1::RunConfig pretended = SmallConfig();
  pretended.set_owner("alice");
  EXPECT_EQ(cache.runs.Create(CreateRequest("mine", pretended), bob).status().code(),
            absl::StatusCode::kPermissionDenied);

  EXPECT_EQ(cache.runs.Create(Request("r"), worker)->run, hers->run);
  EXPECT_EQ(cache.runs.Create(Request("r"), admin)->run, hers->run);
  EXPECT_EQ(cache.runs.Create(Request("r", 2), admin)->run->config().owner, "alice");
  EXPECT_EQ(cache.runs.Create(CreateRequest("given", pretended), admin)->run->config().owner,
            "alice");
  EXPECT_EQ(cache.registry.List(alice).size(), 2);
  EXPECT_TRUE(*cache.runs.Delete(RefOf("r"), alice));

  // A run from before authentication was enabled.
  cache.CreateRun("nobodys", SmallConfig());
  EXPECT_EQ(cache.registry.Find("nobodys", 0, alice).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(cache.registry.Find("nobodys", 0, admin).ok());
}

TEST(RunRegistryTest, RunsOfOneOwnerAreLimited) {
  Limits limits;
  limits.max_runs_per_owner = 1;
  limits.max_runs = 4;
  Cache cache(1 << 20, limits);
  const Caller alice{.identity = "alice", .uses_all_runs = false};
  ASSERT_TRUE(cache.runs.Create(Request("a"), alice).ok());
  EXPECT_TRUE(cache.runs.Create(Request("a", 2), alice).ok()) << "no new run";
  const absl::Status refused = cache.runs.Create(Request("b"), alice).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), testing::HasSubstr("(--max_runs_per_owner)"));
  EXPECT_TRUE(cache.runs.Create(Request("b"), {.identity = "bob"}).ok());
  for (const char* id : {"c", "d"}) cache.CreateRun(id, SmallConfig());
  const absl::Status full = cache.runs.Create(Request("e")).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(full.message(), testing::HasSubstr("(--max_runs)"));
}

TEST(RunRegistryTest, NumbersCantBeUsedUp) {
  Cache cache;
  const uint64_t jump = uint64_t{1} << 32;
  const auto code = [&](const std::string& id, uint64_t incarnation) {
    return cache.runs.Create(Request(id, incarnation)).status().code();
  };
  EXPECT_EQ(code("first", uint64_t{1} << 63), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("first", (uint64_t{1} << 63) - 1), absl::StatusCode::kOk);
  EXPECT_EQ(code("first", (uint64_t{1} << 63) + jump), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("first", (uint64_t{1} << 63) - 1 + jump), absl::StatusCode::kOk);
  ASSERT_TRUE(*cache.runs.Delete(RefOf("first")));
  EXPECT_EQ(code("first", UINT64_MAX - 1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cache.runs.Create(Request("first"))->run->incarnation(), (uint64_t{1} << 63) + jump);

  const auto run = cache.CreateRun("r", SmallConfig());
  const auto advance = [&](uint64_t version) {
    return cache.runs.AdvanceVersion(*run, version).status().code();
  };
  EXPECT_EQ(advance(UINT64_MAX), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(advance(jump + 1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(run->policy_version(), 0);
  EXPECT_EQ(advance(jump), absl::StatusCode::kOk);
  EXPECT_EQ(advance(2 * jump), absl::StatusCode::kOk);
}

TEST(RunRegistryTest, TheLastDeletionsAreRemembered) {
  Cache cache;
  int others = 0;
  const auto delete_others = [&](int count) {
    for (const int end = others + count; others < end; ++others) {
      cache.registry.Delete("other-" + std::to_string(others), 1);
    }
  };
  const auto next = [&] {
    const uint64_t incarnation = cache.CreateRun("r", SmallConfig())->incarnation();
    EXPECT_TRUE(cache.registry.Delete("r", incarnation));
    return incarnation;
  };
  EXPECT_EQ(next(), 1);
  delete_others(kDeletedRunsKept - 1);
  EXPECT_EQ(next(), 2);
  // Its first deletion is older than these, its last one is not.
  delete_others(kDeletedRunsKept - 1);
  EXPECT_EQ(next(), 3);
  delete_others(kDeletedRunsKept);
  EXPECT_EQ(next(), 1);
}

// A worker's stream may hold it for long.
TEST(RunRegistryTest, ADeletedRunTakesNoMemory) {
  Cache cache;
  const std::shared_ptr<sis::Run> run = cache.CreateRun("r", SmallConfig());
  EXPECT_TRUE(run->FindOrCreate({"a", 0}).ok());
  EXPECT_EQ(run->steps().Claim(1, 7, {0, 10}).uncounted, 0);
  ASSERT_TRUE(*cache.runs.Delete(RefOf("r")));
  EXPECT_EQ(run->steps().Claim(1, 7, {0, 10}).uncounted, 10);
  EXPECT_EQ(run->steps().Add(1, Evaluated(), cache.clock.Now(), 10).positions, 10);
  EXPECT_EQ(cache.registry.budget().used(), 0);
  EXPECT_EQ(cache.registry.steps_budget().used(), 0);
}

// Runs that nobody reads any more don't keep a new one from being inspected.
TEST(RunRegistryTest, InspectionIsSharedAmongRunsThatAreRead) {
  Limits limits;
  limits.reader_absence = absl::Minutes(15);
  Cache cache(1 << 20, limits);
  // Records a draw of more sequences than a run has space for. Returns how many are kept.
  const auto inspect = [](sis::Run& run, uint64_t draw) {
    run.Find({"s", 0});
    for (int i = 0; i < 500; ++i) {
      const auto key = static_cast<uint64_t>(i + 1) * 0x9E3779B97F4A7C15u;
      if (!run.inspection().Chosen(key)) continue;
      InspectedPositions positions(4);
      positions.Resize(512);
      std::ranges::fill(positions.decisions, Decision::kAccepted);
      for (auto* values : {&positions.log_ratios, &positions.acceptance_probabilities,
                           &positions.log_envelopes, &positions.covered_masses}) {
        std::ranges::fill(*values, 0.5f);
      }
      run.inspection().Record({absl::StrCat(i), 0}, {key, draw, 0, std::move(positions)});
    }
    return run.inspection().Describe().sequences.size();
  };
  // A run that is alone.
  const size_t alone = inspect(*Cache().CreateRun("r", SmallConfig()), 1);
  ASSERT_GT(alone, 10);
  std::vector<std::shared_ptr<sis::Run>> old;
  for (int i = 0;
       inspect(*old.emplace_back(cache.CreateRun(absl::StrCat("old-", i), SmallConfig())), 1) > 0;
       ++i) {
    ASSERT_LT(i, 100);
  }
  EXPECT_GT(old.size(), sis::Run::kInspectedShare) << "each has a share";
  const auto fresh = cache.CreateRun("fresh", SmallConfig());
  cache.registry.ShareInspection();
  EXPECT_EQ(old[0]->inspection().Describe().sequences.size(), alone) << "nobody lacked anything";
  EXPECT_EQ(inspect(*fresh, 1), 0);
  EXPECT_TRUE(fresh->inspection().lacks_room());
  cache.registry.ShareInspection();
  EXPECT_EQ(inspect(*fresh, 2), 0) << "the others may come again";
  // All but one have no reader any more.
  cache.clock.Advance(absl::Minutes(15));
  EXPECT_EQ(inspect(*old[0], 2), alone);
  inspect(*fresh, 3);
  cache.clock.Advance(absl::Seconds(1));
  cache.registry.ShareInspection();
  EXPECT_FALSE(fresh->inspection().lacks_room());
  EXPECT_EQ(inspect(*fresh, 4), alone);
  EXPECT_EQ(old[0]->inspection().Describe().sequences.size(), alone);
  EXPECT_EQ(old[1]->inspection().Describe().sequences.size(), 0);
  EXPECT_GT(old[2]->inspection().Describe().sequences.size(), 0) << "no more than is needed";
}

TEST(RunRegistryTest, MakeRoomTakesExpiredThenOldestOfAnyRun) {
  Cache cache(int64_t{1} << 20);
  const Records records = RecordGenerator(4, 1000, 1).NextRecords(1);
  v1::RunConfig config = SmallConfig();
  config.set_time_to_live_seconds(100);
  const auto a = cache.CreateRun("a", config);
  const auto b = cache.CreateRun("b", SmallConfig());
  const int64_t each = BytesOfSequence(records);
  const auto append = [&](sis::Run& run, const std::string& id) {
    EXPECT_EQ(AppendBlock(cache, run, records.Block(id)).code(), 0);
    cache.clock.Advance(absl::Seconds(1));
  };
  const auto held = [](sis::Run& run) { return run.Describe().sequences; };
  append(*b, "oldest");
  append(*a, "expires");
  append(*a, "expires too");
  cache.clock.Advance(absl::Seconds(200));
  append(*a, "older");
  append(*b, "younger");
  const int64_t limit = cache.registry.budget().limit();
  const auto free = [&] { return limit - cache.registry.budget().used(); };

  EXPECT_EQ(cache.registry.MakeRoom(*a, free() + 2 * each, Evict::kUnread), nullptr)
      << "both expired ones are enough";
  EXPECT_EQ(held(*a), 1);
  EXPECT_EQ(held(*b), 2);
  EXPECT_EQ(cache.registry.MakeRoom(*a, free() + 1, Evict::kUnread), nullptr);
  EXPECT_EQ(std::get<MissingReason>(b->Find({"oldest", 0})), MissingReason::kEvicted);
  EXPECT_EQ(cache.registry.MakeRoom(*b, free() + 1, Evict::kUnread), nullptr);
  EXPECT_EQ(std::get<MissingReason>(a->Find({"older", 0})), MissingReason::kEvicted);
  EXPECT_EQ(cache.registry.MakeRoom(*b, limit + 1, Evict::kUnread), &cache.registry.budget())
      << "never to be had";
  EXPECT_EQ(held(*b), 1) << "so nothing is evicted for it";
  EXPECT_EQ(cache.registry.MakeRoom(*b, limit, Evict::kUnread), nullptr);
  EXPECT_EQ(cache.registry.budget().used(), 0);
}

TEST(RunRegistryTest, MakeRoomEvictsNothingInVain) {
  RecordGenerator generator(4, 1000, 1);
  const Records records = generator.NextRecords(1);
  Cache cache(int64_t{1} << 20);
  const auto other = cache.CreateRun("other", SmallConfig());
  const int64_t each = BytesOfSequence(records);
  v1::RunConfig config = SmallConfig();
  config.set_byte_quota(4 * each);
  const auto run = cache.CreateRun("r", config);
  for (const std::string id : {"a", "b", "kept", "read"}) {
    ASSERT_EQ(AppendBlock(cache, *run, records.Block(id)).code(), 0);
  }
  ASSERT_EQ(AppendBlock(cache, *other, records.Block("x")).code(), 0);
  const std::vector<SequenceName> names = {{"kept", 0}};
  run->Keep(names, absl::Hours(1));
  const sis::Run::Found in_use = run->Find({"read", 0});

  EXPECT_EQ(cache.registry.MakeRoom(*run, 3 * each, Evict::kUnread), &run->budget())
      << "two can go";
  EXPECT_EQ(run->Describe().sequences, 4);
  const int64_t free = cache.registry.budget().limit() - cache.registry.budget().used();
  EXPECT_EQ(cache.registry.MakeRoom(*other, free + 4 * each, Evict::kUnread),
            &cache.registry.budget());
  EXPECT_EQ(run->Describe().sequences + other->Describe().sequences, 5);
  EXPECT_EQ(cache.registry.MakeRoom(*run, 2 * each, Evict::kUnread), nullptr);
  EXPECT_EQ(run->Describe().sequences, 2);
  EXPECT_EQ(other->Describe().sequences, 1);
}

TEST(RunRegistryTest, StaleGoBeforeExpiredBeforeOldest) {
  RecordGenerator generator(4, 1000, 1);
  const Records records = generator.NextRecords(1);
  Cache cache(int64_t{1} << 20);
  v1::RunConfig config = SmallConfig();
  config.set_max_staleness(1);
  config.set_time_to_live_seconds(100);
  const auto run = cache.CreateRun("r", config);
  const auto append = [&](const std::string& id, uint64_t version) {
    ASSERT_EQ(AppendBlock(cache, *run, records.Block(id, version)).code(), 0);
    cache.clock.Advance(absl::Seconds(1));
  };
  append("expired", 9);
  append("expired and kept", 9);
  const std::vector<SequenceName> names = {{"expired and kept", 0}};
  run->Keep(names, absl::Hours(1));
  cache.clock.Advance(absl::Seconds(200));
  append("oldest", 9);
  append("read", 1);
  sis::Run::Found in_use = run->Find({"read", 0});
  ASSERT_TRUE(run->AdvanceVersion(9).ok());
  append("too late", 1);
  append("young", 9);
  in_use = MissingReason::kNeverArrived;
  const auto reason = [&](const std::string& id) {
    const sis::Run::Found found = run->Find({id, 0});
    const auto* missing = std::get_if<MissingReason>(&found);
    return missing == nullptr ? std::optional<MissingReason>() : *missing;
  };
  const ByteBudget& budget = cache.registry.budget();
  EXPECT_EQ(cache.registry.MakeRoom(*run, budget.limit() - budget.used() + 1, Evict::kUnread),
            nullptr);
  EXPECT_EQ(reason("read"), MissingReason::kStale);
  EXPECT_EQ(reason("too late"), MissingReason::kStale);
  EXPECT_EQ(reason("expired"), MissingReason::kExpired);
  EXPECT_EQ(run->Describe().sequences, 3) << "which was enough";
  EXPECT_EQ(cache.registry.MakeRoom(*run, budget.limit() - budget.used() + 1, Evict::kUnread),
            nullptr);
  EXPECT_EQ(reason("oldest"), MissingReason::kEvicted);
  EXPECT_EQ(reason("expired and kept"), std::nullopt);
  EXPECT_EQ(reason("young"), std::nullopt);
}

}  // namespace
}  // namespace sis
