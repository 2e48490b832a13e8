#include "server/cache/named_runs.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"

namespace sis {
namespace {

struct Model {
  std::shared_ptr<RunCounters> counters;
  absl::Time counted;
};

// Laws of any history: the number of named runs is bounded, `others` count what unnamed runs count,
// and after Choose no active run is unnamed while a quiet run is named.
TEST(NamedRunsTest, LawsOfAnyHistory) {
  constexpr int kLimit = 5;
  std::mt19937 random(7);
  NamedRuns named(kLimit);
  std::map<std::string, Model> runs;
  absl::Time now = absl::UnixEpoch();
  double by_others = 0;
  int taken_over = 0;
  for (int step = 0; step < 20000; ++step) {
    now += absl::Seconds(random() % 200);
    const std::string id = random() % 50 == 0 ? kOtherRuns : absl::StrCat("run-", random() % 12);
    const auto found = runs.find(id);
    switch (random() % 20) {
      case 0: {
        if (found != runs.end()) break;
        const bool is_new = random() % 3 != 0;
        runs[id] = {named.Add(id, is_new, now), is_new ? now : absl::InfinitePast()};
        EXPECT_TRUE(!is_new || id == kOtherRuns || runs[id].counters->named()) << "the newest is";
        break;
      }
      case 1:
        if (found == runs.end()) break;
        named.Remove(id);
        runs.erase(found);
        break;
      default: {
        if (found == runs.end()) break;
        const int64_t positions = random() % 100;
        if (!found->second.counters->named()) by_others += static_cast<double>(positions);
        found->second.counters->AddIngested(positions, 1, 1);
        const bool was_named = found->second.counters->named();
        named.Choose(now);
        found->second.counted = now;
        taken_over += !was_named && found->second.counters->named();
      }
    }
    int count = 0;
    for (const auto& [name, run] : runs) count += run.counters->named();
    ASSERT_LE(count, kLimit);
    ASSERT_EQ(named.others() == nullptr ? 0 : named.others()->totals().ingested_positions,
              by_others);
    named.Choose(now);
    for (const auto& [name, without] : runs) {
      if (without.counters->named() || name == kOtherRuns) continue;
      for (const auto& [other, with] : runs) {
        if (!with.counters->named()) continue;
        ASSERT_FALSE(now - with.counted >= NamedRuns::kQuiet && without.counted > with.counted)
            << name << " counted something later than " << other << ", which is quiet";
      }
    }
  }
  EXPECT_GT(taken_over, 100);
}

TEST(NamedRunsTest, TheBusyDoNotTakeNamesFromEachOther) {
  NamedRuns named(2);
  absl::Time now = absl::UnixEpoch();
  const auto a = named.Add("a", true, now);
  const auto b = named.Add("b", true, now);
  now += absl::Seconds(1);
  const auto c = named.Add("c", true, now);
  const bool a_is_named = a->named();
  for (int minute = 0; minute < 600; ++minute) {
    now += absl::Minutes(1);
    for (const auto& run : {a, b, c}) run->AddIngested(1, 1, 1);
    named.Choose(now);
    ASSERT_TRUE(c->named());
    ASSERT_EQ(a->named(), a_is_named);
  }
}

// The alert SisIngestStalled needs 15 minutes, and 5 more.
TEST(NamedRunsTest, AStoppedRunKeepsItsNameUntilAnAlertFires) {
  NamedRuns named(1);
  absl::Time now = absl::UnixEpoch();
  const auto busy = named.Add("busy", true, now);
  const auto stops = named.Add("stops", true, now);  // replaces the other
  stops->AddIngested(1, 1, 1);
  named.Choose(now);
  for (int minute = 1; minute < 30; ++minute) {
    now += absl::Minutes(1);
    busy->AddIngested(1, 1, 1);
    named.Choose(now);
    ASSERT_TRUE(stops->named()) << "after " << minute << " minutes";
  }
  now += absl::Minutes(1);
  busy->AddIngested(1, 1, 1);
  named.Choose(now);
  EXPECT_TRUE(busy->named());
}

TEST(NamedRunsTest, WithoutNamesAllAreOthers) {
  NamedRuns named(0);
  EXPECT_EQ(named.others(), nullptr);
  const auto run = named.Add("a", true, absl::UnixEpoch());
  run->AddIngested(3, 1, 1);
  named.Choose(absl::UnixEpoch() + absl::Hours(1));
  EXPECT_FALSE(run->named());
  EXPECT_EQ(named.others()->totals().ingested_positions, 3);
}

}  // namespace
}  // namespace sis
