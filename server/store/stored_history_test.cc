#include "server/store/stored_history.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace sis {
namespace {

constexpr size_t kStretchBytes = 400;

// No two numbers alike.
DrawStretch Numbered(int64_t begin) {
  int64_t next = begin;
  const auto number = [&] { return static_cast<double>(next++) / 8; };
  DrawStretch stretch{.first_draw = static_cast<uint64_t>(next++),
                      .last_draw = static_cast<uint64_t>(next++),
                      .draws = next++,
                      .begun = absl::FromUnixNanos(next++),
                      .ended = absl::FromUnixNanos(next++),
                      .sequences = next++};
  LongSums& sums = stretch.sums;
  for (int64_t* count : {&sums.accepted, &sums.rejected, &sums.outside_top_k, &sums.missing,
                         &sums.masked, &sums.envelope_violations, &stretch.uncounted}) {
    *count = next++;
  }
  for (double* sum :
       {&sums.d, &sums.d_sis, &sums.log_envelope, &sums.residual_mass, &sums.acceptance_probability,
        &sums.expected_acceptance, &sums.k3, &sums.total_variation}) {
    *sum = number();
  }
  for (const MissingReason reason : kMissingReasons) {
    stretch.missing[static_cast<size_t>(reason)] = next++;
  }
  for (CorrectionTotals* totals : {&stretch.plain, &stretch.clipped, &stretch.applied}) {
    *totals = {number(), number(), number(), number(), number(), number(), number()};
  }
  return stretch;
}

void ExpectSame(const DrawStretch& a, const DrawStretch& b) {
  EXPECT_EQ(a.first_draw, b.first_draw);
  EXPECT_EQ(a.last_draw, b.last_draw);
  EXPECT_EQ(a.draws, b.draws);
  EXPECT_EQ(a.begun, b.begun);
  EXPECT_EQ(a.ended, b.ended);
  EXPECT_EQ(a.sequences, b.sequences);
  EXPECT_EQ(a.sums, b.sums);
  EXPECT_EQ(a.missing, b.missing);
  EXPECT_EQ(a.plain, b.plain);
  EXPECT_EQ(a.clipped, b.clipped);
  EXPECT_EQ(a.applied, b.applied);
  EXPECT_EQ(a.uncounted, b.uncounted);
}

std::string Encoded(const DrawStretch& stretch) {
  StepHistory history;
  history.Add(stretch);
  return EncodeHistory(history);
}

TEST(StoredHistoryTest, WhatIsEncodedIsRead) {
  StepHistory history;
  for (int64_t i = 0; i < int64_t{StepHistory::kMostStretches}; ++i)
    history.Add(Numbered(100 * i + 1));
  const std::string payload = EncodeHistory(history);
  EXPECT_EQ(payload.size(), 1 + StepHistory::kMostStretches * kStretchBytes);
  const absl::StatusOr<StepHistory> read = ParseHistory(payload);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->stretches().size(), StepHistory::kMostStretches);
  for (size_t i = 0; i < StepHistory::kMostStretches; ++i) {
    ExpectSame(read->stretches()[i], history.stretches()[i]);
  }
  EXPECT_TRUE(ParseHistory(EncodeHistory({})).ok());
}

// As docs/page_format.md says.
TEST(StoredHistoryTest, NumbersStandWhereTheFormatSaysSo) {
  DrawStretch stretch = Numbered(1);
  stretch.first_draw = uint64_t{1} << 63;
  stretch.sums.accepted = 11;
  stretch.sums.d = 0.5;
  stretch.missing[static_cast<size_t>(MissingReason::kNeverArrived)] = 13;
  stretch.applied.gradient_mass = 2;
  const std::string payload = Encoded(stretch);
  const auto at = [&](size_t number) {
    uint64_t bits;
    std::memcpy(&bits, payload.data() + 1 + 8 * number, sizeof(bits));
    return bits;
  };
  EXPECT_EQ(payload[0], 1);
  EXPECT_EQ(at(0), uint64_t{1} << 63);
  EXPECT_EQ(at(7), 11);
  EXPECT_EQ(std::bit_cast<double>(at(13)), 0.5);
  EXPECT_EQ(at(21), 13);
  EXPECT_EQ(std::bit_cast<double>(at(49)), 2);
}

TEST(StoredHistoryTest, OtherBytesAreDataLoss) {
  const std::string payload = Encoded(Numbered(1));
  const auto refused = [](const std::string& bytes) {
    return absl::IsDataLoss(ParseHistory(bytes).status());
  };
  EXPECT_FALSE(refused(payload));
  EXPECT_TRUE(refused(""));
  EXPECT_TRUE(refused("\2" + payload.substr(1)));
  EXPECT_TRUE(refused(payload.substr(0, payload.size() - 1)));
  EXPECT_TRUE(refused(payload + '\0'));
  std::string too_long = payload;
  for (size_t i = 0; i < StepHistory::kMostStretches; ++i) too_long += payload.substr(1);
  EXPECT_TRUE(refused(too_long));
  const auto refused_with = [&](auto change) {
    DrawStretch other = Numbered(1);
    change(other);
    return refused(Encoded(other));
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(refused_with([](auto& s) { s.sums.d = std::nan(""); }));
  EXPECT_TRUE(refused_with([](auto& s) { s.applied.weight = -kInfinity; }));
  EXPECT_TRUE(refused_with([](auto& s) { s.sums.accepted = -1; }));
  EXPECT_TRUE(refused_with([](auto& s) { s.missing[3] = INT64_MAX; }));
  EXPECT_TRUE(refused_with([](auto& s) { s.draws = 0; }));
  EXPECT_TRUE(refused_with([](auto& s) { s.ended = s.begun - absl::Seconds(1); }));
}

}  // namespace
}  // namespace sis
