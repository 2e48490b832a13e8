#include "server/cache/inspection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace sis {
namespace {

constexpr int kSlots = 4;
constexpr int64_t kBytes = 384 * 1024;

InspectedPositions Positions(size_t count, float log_ratio = 0.5f,
                             Decision decision = Decision::kRejected, int32_t token = 3) {
  InspectedPositions positions(kSlots);
  positions.Resize(count);
  std::ranges::fill(positions.decisions, decision);
  std::ranges::fill(positions.sampled_ids, token);
  std::ranges::fill(positions.log_ratios, log_ratio);
  std::ranges::fill(positions.log_envelopes, 1.0f);
  std::ranges::fill(positions.covered_masses, 0.75f);
  return positions;
}

struct Offer {
  Inspection::Name name;
  uint64_t key;
  uint32_t first;
  uint32_t count;
};

std::vector<Offer> RandomOffers(int sequences, uint32_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Offer> offers;
  for (int i = 0; i < sequences; ++i) {
    const uint32_t length = 1 + random() % 200;
    offers.push_back({{"s" + std::to_string(i), 0}, random(), 0, length});
  }
  return offers;
}

// Records an evaluation of exactly these positions.
void Keep(Inspection& inspection, const Inspection::Name& name, uint64_t key, uint64_t draw,
          uint32_t first, const InspectedPositions& positions) {
  inspection.Record(name, {key, draw, first, positions});
}

void Record(Inspection& inspection, const Offer& offer, uint64_t draw) {
  if (!inspection.Chosen(offer.key)) return;
  Keep(inspection, offer.name, offer.key, draw, offer.first, Positions(offer.count));
}

std::set<Inspection::Name> NamesOf(const Inspection& inspection) {
  std::set<Inspection::Name> names;
  for (const auto& sequence : inspection.Describe().sequences) names.insert(sequence.name);
  return names;
}

// A replica that sees half of the sequences keeps those of them that one server would keep.
TEST(InspectionTest, ReplicasKeepTheSequencesThatOneServerWould) {
  const std::vector<Offer> offers = RandomOffers(2000, 3);
  ByteBudget budgets[3] = {ByteBudget(kBytes), ByteBudget(kBytes), ByteBudget(kBytes)};
  Inspection alone(kBytes, kSlots, budgets[0]);
  Inspection first(kBytes, kSlots, budgets[1]), second(kBytes, kSlots, budgets[2]);
  for (const Offer& offer : offers) {
    Record(alone, offer, 1);
    Record(offer.key % 2 ? first : second, offer, 1);
  }
  std::set<Inspection::Name> both = NamesOf(first);
  both.merge(NamesOf(second));
  EXPECT_TRUE(std::ranges::includes(both, NamesOf(alone)));
}

// The annotation is charged while it is kept.
TEST(InspectionTest, KeepsTheAnnotationOfTheLastEvaluation) {
  ByteBudget budget(kBytes);
  Inspection inspection(kBytes, kSlots, budget);
  const auto record = [&](const std::string& annotation) {
    inspection.Record({"a", 0}, {7, 1, 0, Positions(10), 0, 0, annotation});
    return inspection.Find({"a", 0})->annotation;
  };
  EXPECT_EQ(record(""), "");
  const int64_t bytes = inspection.bytes();
  for (const size_t size : {5, 900, 20}) {
    const std::string annotation(size, 'x');
    EXPECT_EQ(record(annotation), annotation);
    EXPECT_EQ(inspection.bytes(), bytes + static_cast<int64_t>(size));
  }
  EXPECT_EQ(record(""), std::string(20, 'x')) << "of ranks that have only part of it";
  inspection.Clear();
  EXPECT_EQ(budget.used(), 0);
}

TEST(InspectionTest, LaterDrawsTakeTheRoom) {
  ByteBudget budget(kBytes);
  Inspection inspection(kBytes, kSlots, budget);
  for (uint64_t draw = 1; draw <= 50; ++draw) {
    for (Offer offer : RandomOffers(20, draw)) {
      offer.name.first += "-" + std::to_string(draw);
      offer.count = 20;
      Record(inspection, offer, draw);
    }
  }
  // 20 sequences fit, so all of the last draw are kept.
  int of_last = 0;
  for (const auto& sequence : inspection.Describe().sequences) of_last += sequence.draw == 50;
  EXPECT_EQ(of_last, 20);
}

TEST(InspectionTest, NeverMoreBytesThanTheBound) {
  std::mt19937_64 random(5);
  ByteBudget budget(3 * kBytes / 2);
  Inspection inspections[] = {{kBytes, kSlots, budget}, {kBytes, kSlots, budget}};
  const uint32_t most = inspections[0].kept_positions();
  ASSERT_GT(most, 200u);
  for (int i = 0; i < 5000; ++i) {
    Inspection& inspection = inspections[random() % 2];
    const uint32_t first = random() % most;
    const uint32_t count = 1 + random() % std::min<uint32_t>(300, most - first);
    const uint64_t key = random() % 300 * 0x9E3779B97F4A7C15u;
    Record(inspection, {{"s" + std::to_string(key), 0}, key, first, std::min(count, most - first)},
           1 + i / 1000);
    ASSERT_LE(inspection.bytes(), kBytes);
    ASSERT_LE(budget.used(), budget.limit());
  }
  EXPECT_EQ(inspections[0].bytes() + inspections[1].bytes(), budget.used());
  for (Inspection& inspection : inspections) inspection.Close();
  EXPECT_EQ(budget.used(), 0);
}

// Values must not be computed for sequences that are not kept.
TEST(InspectionTest, ARunWithoutRoomChoosesFew) {
  ByteBudget budget(kBytes);
  const int64_t of_others = kBytes - Inspection::kTokenBytes - 4096;
  ASSERT_TRUE(budget.TryCharge(of_others));
  Inspection inspection(kBytes, kSlots, budget);
  int chosen = 0;
  const std::vector<Offer> offers = RandomOffers(20000, 9);
  for (const Offer& offer : offers) {
    chosen += inspection.Chosen(offer.key);
    Record(inspection, offer, 1);
  }
  EXPECT_GT(chosen, 0);
  EXPECT_LT(chosen, 200);
  // With space again, some sequences are kept.
  budget.Refund(of_others);
  for (const Offer& offer : offers) Record(inspection, offer, 2);
  EXPECT_GT(inspection.Describe().sequences.size(), 5u);
}

// For any evaluations in any parts: each position of a kept sequence's last draw is kept or marked
// as cut.
TEST(InspectionTest, PositionsThatAreNotKeptAreMarkedAsCut) {
  std::mt19937_64 random(11);
  int cut_by_length = 0, cut_by_others = 0;
  for (int round = 0; round < 300; ++round) {
    ByteBudget budget(kBytes);
    const int64_t of_others = static_cast<int64_t>(random() % kBytes);
    ASSERT_TRUE(budget.TryCharge(of_others));
    Inspection inspection(kBytes, kSlots, budget);
    const uint32_t most = inspection.kept_positions();
    std::map<std::pair<Inspection::Name, uint64_t>, std::set<uint32_t>> evaluated;  // by draw
    for (int i = 0; i < 12; ++i) {
      const uint64_t key = random() % 3 * 0x9E3779B97F4A7C15u;
      const Inspection::Name name{"s" + std::to_string(key), 0};
      const uint64_t draw = 1 + i / 6;
      const uint32_t first = random() % (2 * most), end = first + 1 + random() % most;
      if (!inspection.Chosen(key)) continue;
      const uint32_t kept = first < most ? std::min(end, most) - first : 0;
      Inspection::Sequence values{key, draw, first, Positions(kept)};
      values.Cut(first + kept, end);
      inspection.Record(name, values);
      for (uint32_t position = first; position < end; ++position) {
        evaluated[{name, draw}].insert(position);
      }
    }
    for (const Inspection::Summary& summary : inspection.Describe().sequences) {
      const auto found = inspection.Find(summary.name);
      ASSERT_TRUE(found.has_value());
      EXPECT_EQ(summary.cut_begin, found->cut_begin);
      EXPECT_EQ(summary.cut_end, found->cut_end);
      for (const uint32_t position : evaluated.at({summary.name, summary.draw})) {
        const uint32_t at = position - found->first_position;
        const bool kept =
            at < found->positions.size() && found->positions.decisions[at] != kNotEvaluated;
        ASSERT_TRUE(kept || (position >= found->cut_begin && position < found->cut_end))
            << position << " of " << found->cut_begin << " to " << found->cut_end;
      }
      (found->cut_begin >= most ? cut_by_length : cut_by_others) += found->cut_end > 0;
    }
  }
  EXPECT_GT(cut_by_length, 20);
  EXPECT_GT(cut_by_others, 20);
}

TEST(InspectionTest, ARetryCountsNoTokenTwice) {
  ByteBudget budget(kBytes);
  Inspection inspection(kBytes, kSlots, budget);
  for (int retry = 0; retry < 3; ++retry) {
    Keep(inspection, {"a", 0}, 1, 7, 0, Positions(10));
    Keep(inspection, {"a", 0}, 1, 7, 5, Positions(10));
  }
  const std::vector<Inspection::TokenCounts> tokens = inspection.Describe().tokens;
  ASSERT_EQ(tokens.size(), 1u);
  EXPECT_EQ(tokens[0].rejected, 15u);
  EXPECT_EQ(tokens[0].max_error, 0u);
}

TEST(InspectionTest, RejectedTokensFirstAcceptedLast) {
  ByteBudget budget(kBytes);
  Inspection inspection(kBytes, kSlots, budget);
  Keep(inspection, {"a", 0}, 1, 1, 0, Positions(40, 0.1f, Decision::kAccepted, 10));
  Keep(inspection, {"b", 0}, 2, 1, 0, Positions(30, 0.1f, Decision::kAccepted, 20));
  Keep(inspection, {"c", 0}, 3, 1, 0, Positions(30, 0.1f, Decision::kRejected, 20));
  Keep(inspection, {"d", 0}, 4, 1, 0, Positions(20, 0.1f, Decision::kRejected, 30));
  const std::vector<Inspection::TokenCounts> tokens = inspection.Describe().tokens;
  ASSERT_EQ(tokens.size(), 3u);
  EXPECT_EQ(tokens[0].token, 30);
  EXPECT_EQ(tokens[1].token, 20);
  EXPECT_EQ(tokens[2].token, 10);
}

TEST(InspectionTest, LargestDeviationsOfAll) {
  ByteBudget budget(kBytes);
  Inspection inspection(kBytes, kSlots, budget);
  InspectedPositions positions = Positions(300);
  std::vector<float> sizes;
  for (size_t i = 0; i < 300; ++i) {
    positions.log_ratios[i] = (i % 2 ? -1.0f : 1.0f) * static_cast<float>(i * 7919 % 300);
    sizes.push_back(std::abs(positions.log_ratios[i]));
  }
  positions.decisions[0] = Decision::kMissing;
  Keep(inspection, {"a", 0}, 1, 1, 0, positions);
  std::ranges::sort(sizes, std::greater<>());
  const std::vector<Inspection::Deviation> found = inspection.Describe().deviations;
  ASSERT_EQ(found.size(), Inspection::kDeviationsShown);
  for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(std::abs(found[i].log_ratio), sizes[i]);
}

}  // namespace
}  // namespace sis
