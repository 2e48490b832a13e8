#include "server/store/stored_step.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstdint>

namespace sis {
namespace {

// Sets every integer of a structure to a different number.
template <typename T>
void Fill(T& integers, int64_t& next) {
  std::array<int64_t, sizeof(T) / sizeof(int64_t)> numbers;
  for (int64_t& number : numbers) number = next++;
  integers = std::bit_cast<T>(numbers);
}

StepLedger::Step Numbered() {
  int64_t next = 100;
  StepLedger::Step step{.draw = 1, .number = 2, .sequences = 3};
  step.begun = absl::FromUnixNanos(4);
  step.ended = absl::FromUnixNanos(5);
  Fill(step.uncounted, next);
  Evaluated& evaluated = step.evaluated;
  Fill(evaluated.sums, next);
  Fill(evaluated.statistics, next);
  Fill(evaluated.ages, next);
  Fill(evaluated.missing, next);
  for (const int top_k : {1, 8, 64}) Fill(evaluated.prefix_curve[top_k], next);
  for (const char* name : {"", "dapo", "gspo"}) Fill(evaluated.observed[name], next);
  return step;
}

TEST(StoredStepTest, ReturnsTheStoredStep) {
  const StepLedger::Step step = Numbered();
  const std::string payload = EncodeStep(step);
  const absl::StatusOr<StepLedger::Step> parsed = ParseStep(payload);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(EncodeStep(*parsed), payload);
  EXPECT_EQ(parsed->draw, 1);
  EXPECT_EQ(parsed->number, 2);
  EXPECT_EQ(parsed->sequences, 3);
  EXPECT_EQ(parsed->begun, step.begun);
  EXPECT_EQ(parsed->ended, step.ended);
  EXPECT_EQ(parsed->uncounted, step.uncounted);
  EXPECT_EQ(parsed->evaluated.sums, step.evaluated.sums);
  EXPECT_EQ(parsed->evaluated.statistics, step.evaluated.statistics);
  EXPECT_EQ(parsed->evaluated.ages, step.evaluated.ages);
  EXPECT_EQ(parsed->evaluated.missing, step.evaluated.missing);
  EXPECT_EQ(parsed->evaluated.observed, step.evaluated.observed);
  ASSERT_EQ(parsed->evaluated.prefix_curve.size(), 3);
  EXPECT_EQ(parsed->evaluated.prefix_curve.at(8).residual_mass,
            step.evaluated.prefix_curve.at(8).residual_mass);
}

TEST(StoredStepTest, OtherBytesAreDataLoss) {
  const std::string payload = EncodeStep(Numbered());
  for (size_t size = 0; size < payload.size(); ++size) {
    EXPECT_TRUE(absl::IsDataLoss(ParseStep(payload.substr(0, size)).status())) << size;
  }
  EXPECT_TRUE(absl::IsDataLoss(ParseStep(payload + "x").status()));
  EXPECT_TRUE(absl::IsDataLoss(ParseStep("2" + payload.substr(1)).status())) << "version";
  StepLedger::Step step = Numbered();
  step.ended = step.begun - absl::Nanoseconds(1);
  EXPECT_TRUE(absl::IsDataLoss(ParseStep(EncodeStep(step)).status())) << "ends before it begins";
}

}  // namespace
}  // namespace sis
