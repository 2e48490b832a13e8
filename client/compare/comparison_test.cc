// What a comparison says of what it left out, of little and of much.
#include "client/compare/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/compare/testing/changed_recordings.h"

namespace sis {
namespace {

using namespace changed_recordings;  // NOLINT(google-build-using-namespace)
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ComparisonTest, TokensShownAsBytesOrAsLettersOfTheTokenizerAreTheSame) {
  const File other = Changed(Recorded("4_bit"), [](RecordedPosition& position) {
    const auto spell = [](std::string& text) {
      if (absl::StartsWith(text, " ")) text = absl::StrCat("Ġ", text.substr(1));
    };
    spell(*position.sampled.text);
    for (RecordedToken& token : position.top) spell(*token.text);
  });
  EXPECT_THAT(Faults(Recorded("float32"), other), IsEmpty());
}

TEST(ComparisonTest, OfTooLittleNothingIsSaid) {
  const File a = {{{Recorded("float32")[0].positions[0]}}};
  const File b = {{{Recorded("4_bit")[0].positions[0]}}};
  const Comparison comparison = Compared(a, b);
  EXPECT_FALSE(comparison.diagnosis.fault);
  for (const Check& check : comparison.diagnosis.checks) {
    if (check.name == "token_texts") continue;  // ten ids are enough for it
    EXPECT_EQ(check.outcome, Check::Outcome::kUntested) << check.name;
    EXPECT_FALSE(check.finding.empty());
  }
  EXPECT_THAT(Verdict(Compared({{}}, {{}})), HasSubstr("nothing to compare"));
  EXPECT_THAT(Verdict(Compared({}, {})), HasSubstr("nothing to compare"));
}

// Positions of both files, the longer one's of each sequence.
size_t PositionsOf(const Comparison& comparison) {
  size_t positions = 0;
  for (size_t i = 0; i < comparison.pair.a.sequences.size(); ++i) {
    positions +=
        std::max(comparison.pair.a.sequences[i].size(), comparison.pair.b.sequences[i].size());
  }
  return positions;
}

std::string LeftOutOf(const Comparison& comparison) {
  std::string reasons;
  for (const LeftOut& left_out : comparison.diagnosis.left_out) {
    absl::StrAppend(&reasons, left_out.positions, " ", left_out.reason, "\n");
  }
  return reasons;
}

TEST(ComparisonTest, WhatIsLeftOutIsCountedToThePosition) {
  const File& a = Recorded("float32");
  File swapped = Recorded("4_bit");
  std::swap(swapped[1], swapped[4]);
  File shorter = Recorded("4_bit");
  shorter[2].positions.resize(7);
  const File unscored = Changed(Recorded("4_bit"), [](RecordedPosition& position) {
    position.sampled.log_prob = -kInfinity;
    position.top.resize(1);
  });
  for (const File& b :
       {Recorded("bfloat16"), Recorded("4_bit_own_text"), swapped, shorter, unscored,
        WithListsOnlyFrom(Recorded("4_bit"), 1), WithoutFirst(Recorded("4_bit"), 1)}) {
    for (const Comparison& comparison : {Compared(a, b), Compared(b, a)}) {
      size_t left_out = 0;
      for (const LeftOut& part : comparison.diagnosis.left_out) {
        EXPECT_GT(part.positions, 0u);
        left_out += part.positions;
      }
      EXPECT_EQ(comparison.diagnosis.size.positions + left_out, PositionsOf(comparison));
    }
  }
  EXPECT_THAT(LeftOutOf(Compared(a, a)), IsEmpty());
  const size_t both = std::max(a[1].positions.size(), swapped[1].positions.size()) +
                      std::max(a[4].positions.size(), swapped[4].positions.size());
  EXPECT_THAT(LeftOutOf(Compared(a, swapped)),
              HasSubstr(absl::StrCat(both - 2,
                                     " after a token that the files sampled differently "
                                     "(in 2 of ",
                                     a.size(), " sequences)")));
  EXPECT_THAT(LeftOutOf(Compared(a, shorter)), HasSubstr("that only A has"));
  EXPECT_THAT(LeftOutOf(Compared(shorter, a)), HasSubstr("that only B has"));
  EXPECT_THAT(LeftOutOf(Compared(a, unscored)),
              HasSubstr("where B gives no log-prob of A's token"));
  EXPECT_THAT(LeftOutOf(Compared(unscored, a)),
              HasSubstr("where A gives no log-prob of its own token"));
  EXPECT_THAT(LeftOutOf(Compared(a, WithListsOnlyFrom(Recorded("4_bit"), 1))),
              HasSubstr("where B's list and its own token's log-prob sum to more than 1"));
}

// What takes the square of its positions runs into the test's time limit.
TEST(ComparisonTest, ASequenceMayBeLong) {
  File file(1);
  for (int32_t i = 0; i < 200'000; ++i) {
    file[0].positions.push_back({{i % 1000, std::nullopt, -1}, {}});
  }
  EXPECT_EQ(Compared(file, file).whole.positions.size(), 200'000);
}

// The same of the tokens of a list.
TEST(ComparisonTest, AListMayBeLong) {
  constexpr int32_t kTokens = 1 << 16;
  File a(1);
  for (int32_t i = 0; i < 6; ++i) {
    RecordedPosition position{{1000 * i, std::nullopt, 0}, {}};
    for (int32_t id = 0; id < kTokens; ++id) {
      const auto share = static_cast<float>((id + i) % 1000 - 500);
      position.top.push_back({id, std::nullopt, -11.2f - share / 10'000});
    }
    position.sampled.log_prob = position.top[1000 * i].log_prob;
    a[0].positions.push_back(position);
  }
  const File b = Changed(a, [](RecordedPosition& position) {
    for (RecordedToken& token : position.top) token.log_prob -= 0.001f;
    TakeSampledFromList(position);
  });
  const Comparison comparison = Compared(a, b);
  EXPECT_EQ(comparison.a_to_b.unscored, 0u) << "tokens far down the list are found";
  EXPECT_EQ(comparison.a_to_b.top_k, 512);
  EXPECT_THAT(LeftOutOf(comparison), IsEmpty());
}

TEST(ComparisonTest, NoFaultIsFoundOnlyWhereTheSizeSaysSo) {
  const std::vector<double> differences = Differences(Recorded("float32"), Recorded("4_bit"));
  size_t without_fault = 0, undecided = 0;
  for (const size_t length : {1, 3, 6, 12}) {
    for (const double scale : {1.0, 3.0, 6.0, 12.0}) {
      for (unsigned seed = 0; seed < 20; ++seed) {
        File a = Recorded("float32"), b = WithNoise(a, differences, scale, seed);
        a.resize(1);
        b.resize(1);
        a[0].positions.resize(length);
        b[0].positions.resize(length);
        const Comparison comparison = Compared(a, b);
        if (comparison.diagnosis.fault) continue;
        const bool said = absl::StrContains(Verdict(comparison), "No fault was found");
        const DifferenceSize& size = comparison.diagnosis.size;
        EXPECT_EQ(said, size.positions > 0 && size.mean < 0.15) << Verdict(comparison);
        ++(said ? without_fault : undecided);
      }
    }
  }
  EXPECT_GT(without_fault, 0u);
  EXPECT_GT(undecided, 0u);
}

TEST(ComparisonTest, EveryCheckStatesItsEvidence) {
  for (const char* const b : {"4_bit", "float32_temperature_0.7", "float32_top_p_0.9"}) {
    for (const Check& check : Compared(Recorded("float32"), Recorded(b)).diagnosis.checks) {
      EXPECT_FALSE(check.name.empty() || check.question.empty() || check.statistic.empty() ||
                   check.reason.empty())
          << check.name;
      EXPECT_EQ(check.outcome == Check::Outcome::kClear, check.finding.empty()) << check.name;
    }
  }
}

TEST(ComparisonTest, BothDirections) {
  const Comparison there = Compared(Recorded("float32"), Recorded("4_bit"));
  const Comparison back = Compared(Recorded("4_bit"), Recorded("float32"));
  EXPECT_EQ(there.a_to_b.sums, back.b_to_a.sums);
  EXPECT_EQ(there.b_to_a.sums, back.a_to_b.sums);
  EXPECT_NE(there.a_to_b.sums, there.b_to_a.sums);
  EXPECT_EQ(there.a_to_b.sums.d, there.b_to_a.sums.d);
}

}  // namespace
}  // namespace sis
