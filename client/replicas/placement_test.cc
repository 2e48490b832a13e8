// The same laws and golden values as the Python client's placement_test.py.
#include "client/replicas/placement.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/conformance/golden_reader.h"

namespace sis {
namespace {

constexpr int kSequences = 20000;

std::vector<std::string> Names(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back("sis-" + std::to_string(i) + ".sis:7777");
  return names;
}

std::string Id(int i) {
  return "prompt-" + std::to_string(i / 8) + "/response-" + std::to_string(i % 8);
}

std::string Place(const std::vector<std::string>& names, const std::string& id,
                  const std::string& run_id = "run") {
  return names[Placement(names).Replica(run_id, id)];
}

void ExpectBinomial(int64_t count, double share) {
  const double deviation = std::sqrt(kSequences * share * (1 - share));
  EXPECT_LT(std::abs(static_cast<double>(count) - kSequences * share), 5 * deviation);
}

TEST(PlacementTest, GoldenValues) {
  GoldenReader golden("placement.txt");
  int entries = 0;
  for (; !golden.AtEnd(); ++entries) {
    const std::string run_id = golden.Bytes();
    const std::string sequence_id = golden.Bytes();
    std::vector<std::string> names(golden.Uint8());
    for (std::string& name : names) {
      name = golden.Bytes();
      ASSERT_EQ(PlacementScore(name, run_id, sequence_id), golden.Uint64()) << name;
    }
    ASSERT_EQ(Placement(names).Replica(run_id, sequence_id), golden.Uint8()) << sequence_id;
  }
  EXPECT_GT(entries, 100);
}

TEST(PlacementTest, TheOrderOfTheListMeansNothing) {
  const std::vector<std::string> names = Names(7);
  const std::vector<std::string> reversed(names.rbegin(), names.rend());
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(Place(names, Id(i)), Place(reversed, Id(i)));
}

TEST(PlacementTest, AReplicaThatLeavesMovesItsOwnSequencesOnlyAndOneThatJoinsTakesItsShare) {
  const std::vector<std::string> all = Names(7);
  for (const std::string& gone : all) {
    std::vector<std::string> rest = all;
    std::erase(rest, gone);
    int64_t moved = 0;
    for (int i = 0; i < kSequences; ++i) {
      const std::string with = Place(all, Id(i));
      const std::string without = Place(rest, Id(i));
      ASSERT_NE(without, gone);
      if (with != without) {
        ASSERT_EQ(with, gone);
        ++moved;
      }
    }
    ExpectBinomial(moved, 1.0 / 7);
  }
}

TEST(PlacementTest, RunsArePlacedIndependently) {
  const std::vector<std::string> names = Names(3);
  int64_t same = 0;
  for (int i = 0; i < kSequences; ++i) {
    same += Place(names, Id(i), "run-1") == Place(names, Id(i), "run-2");
  }
  ExpectBinomial(same, 1.0 / 3);
}

}  // namespace
}  // namespace sis
