// Faults made on purpose, each between engines that also differ numerically: each must be named,
// and no other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "client/compare/comparison.h"
#include "client/compare/testing/changed_recordings.h"

namespace sis {
namespace {

using namespace changed_recordings;  // NOLINT(google-build-using-namespace)
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(FaultTest, ATemperatureOfTheEngine) {
  const File& processed = Recorded("float32_temperature_0.7");
  for (const char* const raw : {"float32", "bfloat16", "4_bit"}) {
    const Comparison comparison = Compared(Recorded(raw), processed);
    EXPECT_THAT(FaultsOf(comparison), ElementsAre("temperature")) << raw;
    EXPECT_THAT(Verdict(comparison), HasSubstr("B looks like A at temperature 0.70"));
    EXPECT_THAT(Verdict(Compared(processed, Recorded(raw))), HasSubstr("A like B at 0.70")) << raw;
  }
}

TEST(FaultTest, AnyTemperature) {
  for (const double temperature : {0.3, 0.5, 0.8, 0.9, 0.95, 1.06, 1.25, 2.0}) {
    const File processed = AtTemperature(Recorded("float32"), temperature);
    const Comparison comparison = Compared(Recorded("4_bit"), processed);
    EXPECT_THAT(FaultsOf(comparison), ElementsAre("temperature")) << temperature;
    EXPECT_THAT(Faults(processed, Recorded("bfloat16")), ElementsAre("temperature")) << temperature;
    EXPECT_THAT(Faults(WithoutIds(Recorded("4_bit")), WithoutIds(processed)),
                ElementsAre("temperature"));
  }
}

TEST(FaultTest, AFilter) {
  for (const char* const raw : {"float32", "bfloat16", "4_bit"}) {
    const Comparison comparison = Compared(Recorded(raw), Recorded("float32_top_p_0.9"));
    EXPECT_THAT(FaultsOf(comparison), ElementsAre("filter")) << raw;
    EXPECT_THAT(Verdict(comparison), HasSubstr("those of B are processed"));
    EXPECT_THAT(Verdict(Compared(Recorded("float32_top_p_0.9"), Recorded(raw))),
                HasSubstr("those of A are processed"));
    for (const size_t k : {1, 3, 8}) {
      EXPECT_THAT(Faults(Recorded(raw), WithTopK(Recorded("4_bit"), k)), ElementsAre("filter"))
          << raw << " " << k;
    }
  }
}

TEST(FaultTest, AFilterAndATemperature) {
  const File both = WithTopK(AtTemperature(Recorded("float32"), 0.7), 6);
  EXPECT_THAT(Faults(Recorded("4_bit"), both), ElementsAre("filter", "temperature"));
}

TEST(FaultTest, APenalty) {
  for (const double penalty : {-0.6, 0.4, 0.7, 1.5}) {
    const File punished = WithPresencePenalty(Recorded("float32"), penalty);
    for (const char* const raw : {"bfloat16", "4_bit"}) {
      const Comparison comparison = Compared(Recorded(raw), punished);
      EXPECT_THAT(FaultsOf(comparison), ElementsAre("penalty")) << raw << " " << penalty;
      EXPECT_THAT(Verdict(comparison),
                  HasSubstr(penalty > 0 ? "B gives tokens" : "A gives tokens"));
      EXPECT_THAT(Faults(punished, Recorded(raw)), ElementsAre("penalty")) << raw << " " << penalty;
    }
  }
}

TEST(FaultTest, ListsOfOtherPositions) {
  for (const int shift : {-2, -1, 1, 2, 3}) {
    const Comparison comparison =
        Compared(Recorded("float32"), WithListsFrom(Recorded("4_bit"), shift));
    EXPECT_THAT(FaultsOf(comparison), ElementsAre("lists_shifted")) << shift;
    EXPECT_THAT(Verdict(comparison), HasSubstr(shift > 0 ? "earlier" : "later"));
    EXPECT_THAT(Verdict(comparison), HasSubstr("The lists of B belong"));
    const Comparison back =
        Compared(WithListsFrom(Recorded("bfloat16"), shift), Recorded("float32"));
    EXPECT_THAT(FaultsOf(back), ElementsAre("lists_shifted"));
    EXPECT_THAT(Verdict(back), HasSubstr("The lists of A belong"));
    EXPECT_THAT(Faults(WithoutIds(Recorded("float32")),
                       WithoutIds(WithListsFrom(Recorded("4_bit"), shift))),
                ElementsAre("lists_shifted"));
  }
}

TEST(FaultTest, ListsOfOtherPositionsBesideLogProbsInPlace) {
  for (const int shift : {-2, -1, 1, 2, 3}) {
    for (const char* const name : {"bfloat16", "4_bit"}) {
      const File shifted = WithListsOnlyFrom(Recorded(name), shift);
      for (const File& other : {Recorded("float32"), Recorded(name)}) {
        EXPECT_THAT(Faults(other, shifted), ElementsAre("lists_shifted")) << shift;
        EXPECT_THAT(Verdict(Compared(other, shifted)), HasSubstr("The lists of B belong")) << shift;
        EXPECT_THAT(Faults(shifted, other), ElementsAre("lists_shifted")) << shift;
        EXPECT_THAT(Verdict(Compared(shifted, other)), HasSubstr("The lists of A belong")) << shift;
      }
      // The other file has no list to compare with, but the tokens belie their own.
      EXPECT_THAT(Faults(WithoutLists(Recorded("float32")), shifted),
                  ElementsAre("sampled_column"));
      EXPECT_THAT(Verdict(Compared(WithoutLists(Recorded("float32")), shifted)), HasSubstr("In B"));
    }
  }
}

TEST(FaultTest, SampledLogProbsOfOtherPositions) {
  for (const int shift : {-1, 1, 2}) {
    for (const File& b : {WithSampledFrom(Recorded("4_bit"), shift),
                          WithoutLists(WithSampledFrom(Recorded("4_bit"), shift))}) {
      EXPECT_THAT(Faults(Recorded("float32"), b), ElementsAre("sampled_shifted")) << shift;
      EXPECT_THAT(Faults(b, Recorded("float32")), ElementsAre("sampled_shifted")) << shift;
    }
    // Which file it is, lists tell; without them neither is named.
    const File b = WithSampledFrom(Recorded("4_bit"), shift);
    EXPECT_THAT(Verdict(Compared(Recorded("float32"), b)), HasSubstr("sampled tokens of B belong"));
    EXPECT_THAT(Verdict(Compared(b, Recorded("float32"))), HasSubstr("sampled tokens of A belong"));
    EXPECT_THAT(Verdict(Compared(WithoutLists(b), WithoutLists(Recorded("float32")))),
                HasSubstr("sampled tokens of A or B belong"));
  }
}

TEST(FaultTest, OneFileStartsLater) {
  for (const size_t count : {1, 2, 3}) {
    const Comparison comparison =
        Compared(Recorded("float32"), WithoutFirst(Recorded("4_bit"), count));
    EXPECT_THAT(FaultsOf(comparison), ElementsAre("tokens_shifted"));
    EXPECT_THAT(Verdict(comparison), HasSubstr("A has "));
    EXPECT_THAT(Faults(WithoutFirst(Recorded("bfloat16"), count), Recorded("4_bit")),
                ElementsAre("tokens_shifted"));
    EXPECT_THAT(Faults(WithoutLists(Recorded("float32")),
                       WithoutLists(WithoutFirst(Recorded("4_bit"), count))),
                ElementsAre("tokens_shifted"));
  }
}

TEST(FaultTest, TheWrongColumn) {
  const File wrong = Changed(Recorded("4_bit"), [](RecordedPosition& position) {
    position.sampled.log_prob = position.top.front().log_prob;
  });
  const Comparison comparison = Compared(Recorded("float32"), wrong);
  EXPECT_THAT(FaultsOf(comparison), ElementsAre("sampled_column"));
  EXPECT_THAT(Verdict(comparison), HasSubstr("In B"));
  EXPECT_THAT(Verdict(comparison), HasSubstr("the wrong column"));
  EXPECT_THAT(Faults(wrong, Recorded("float32")), ElementsAre("sampled_column"));
}

TEST(FaultTest, OtherIds) {
  // The texts are the same, but an id of one file is another token in the other.
  const auto offset = [](int32_t id) { return id + 3; };
  const auto scramble = [](int32_t id) { return (id * 7919 + 13) % 50021; };
  for (const std::function<int32_t(int32_t)>& number :
       {std::function<int32_t(int32_t)>(offset), std::function<int32_t(int32_t)>(scramble)}) {
    const Comparison comparison =
        Compared(Recorded("float32"), Renumbered(Recorded("4_bit"), number));
    const std::vector<std::string> faults = FaultsOf(comparison);
    EXPECT_THAT(faults, ::testing::Contains("token_numbers"));
    for (const std::string& fault : faults) EXPECT_THAT(fault, HasSubstr("token_"));
  }
  EXPECT_THAT(
      Named(Compared(Recorded("float32"), Renumbered(Recorded("4_bit"), offset)), "token_numbers")
          .finding,
      HasSubstr("those of B are +3"));
}

TEST(FaultTest, OtherTexts) {
  // Ids agree, but texts do not: as if B had been decoded by another tokenizer.
  const File other = Changed(Recorded("4_bit"), [](RecordedPosition& position) {
    *position.sampled.text += "x";
    for (RecordedToken& token : position.top) *token.text += "x";
  });
  EXPECT_THAT(Faults(Recorded("float32"), other), ElementsAre("token_texts"));
  EXPECT_THAT(Faults(other, Recorded("float32")), ElementsAre("token_texts"));
}

TEST(FaultTest, AnotherSegmentation) {
  const File merged = Merged(Recorded("float32"));
  EXPECT_THAT(Faults(Recorded("4_bit"), merged), ElementsAre("segmentation"));
  EXPECT_THAT(Faults(merged, Recorded("4_bit")), ElementsAre("segmentation"));
  EXPECT_THAT(Faults(WithoutIds(merged), WithoutIds(Recorded("4_bit"))),
              ElementsAre("segmentation"));
}

TEST(FaultTest, OtherWeights) {
  const std::vector<double> differences = Differences(Recorded("float32"), Recorded("4_bit"));
  for (unsigned seed = 0; seed < 5; ++seed) {
    EXPECT_THAT(Faults(Recorded("float32"), WithNoise(Recorded("bfloat16"), differences, 6, seed)),
                ElementsAre("weights"))
        << seed;
  }
}

}  // namespace
}  // namespace sis
