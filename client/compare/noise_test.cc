// Numerical noise must not be named at all, but for its size.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/compare/comparison.h"
#include "client/compare/testing/changed_recordings.h"

namespace sis {
namespace {

using namespace changed_recordings;  // NOLINT(google-build-using-namespace)
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(NoiseTest, EnginesThatDifferNumericallyHaveNoFault) {
  const std::vector<std::string> names = {"float32", "bfloat16", "4_bit"};
  for (const std::string& a : names) {
    for (const std::string& b : names) {
      EXPECT_THAT(Faults(Recorded(a), Recorded(b)), IsEmpty()) << a << " " << b;
      EXPECT_THAT(Faults(WithoutIds(Recorded(a)), WithoutIds(Recorded(b))), IsEmpty());
      EXPECT_THAT(Faults(WithoutLists(Recorded(a)), WithoutLists(Recorded(b))), IsEmpty());
      for (const size_t k : {1, 2, 5}) {
        EXPECT_THAT(Faults(Shortened(Recorded(a), k), Recorded(b)), IsEmpty()) << a << " " << b;
        EXPECT_THAT(Faults(Recorded(a), Shortened(Recorded(b), k)), IsEmpty()) << a << " " << b;
        EXPECT_THAT(Faults(Shortened(Recorded(a), k), Shortened(Recorded(b), k)), IsEmpty());
      }
    }
    EXPECT_THAT(Faults(Recorded(a), Recorded("4_bit_own_text")), IsEmpty()) << a;
    EXPECT_THAT(Faults(Recorded("4_bit_own_text"), Recorded(a)), IsEmpty()) << a;
  }
}

TEST(NoiseTest, OneSequenceAloneHasNoFault) {
  for (size_t i = 0; i < Recorded("float32").size(); ++i) {
    for (const char* const b : {"bfloat16", "4_bit", "4_bit_own_text"}) {
      EXPECT_THAT(Faults({Recorded("float32")[i]}, {Recorded(b)[i]}), IsEmpty()) << b << " " << i;
    }
  }
}

TEST(NoiseTest, ResampledNoiseIsNoFault) {
  const std::vector<double> differences = Differences(Recorded("float32"), Recorded("4_bit"));
  // The last one is half as large again as that of 4-bit weights.
  for (const double scale : {0.001, 0.1, 0.5, 1.0, 1.5}) {
    for (unsigned seed = 0; seed < 20; ++seed) {
      const File noisy = WithNoise(Recorded("float32"), differences, scale, seed);
      EXPECT_THAT(Faults(Recorded("float32"), noisy), IsEmpty()) << scale << " " << seed;
      EXPECT_THAT(Faults(noisy, Recorded("4_bit")), IsEmpty()) << scale << " " << seed;
    }
  }
}

TEST(NoiseTest, RecordingsOfLargerModelsHaveNoFault) {
  const char* const folder = std::getenv("SIS_RECORDED_DATA");
  if (folder == nullptr) GTEST_SKIP() << "SIS_RECORDED_DATA is not set: no recordings";
  for (const char* const model : {"gemma-3-270m", "qwen-3-1-7b"}) {
    const File cpu = Read(absl::StrCat(folder, "/", model, "_cpu.json"));
    const File cuda = Read(absl::StrCat(folder, "/", model, "_cuda.json"));
    EXPECT_THAT(Faults(cpu, cuda), IsEmpty()) << model;
    EXPECT_THAT(Faults(cuda, cpu), IsEmpty()) << model;
    EXPECT_THAT(Faults(cpu, AtTemperature(cuda, 0.8)), ElementsAre("temperature")) << model;
    EXPECT_THAT(Faults(AtTemperature(cpu, 1.3), cuda), ElementsAre("temperature")) << model;
    EXPECT_THAT(Faults(WithListsFrom(cpu, 1), cuda), ElementsAre("lists_shifted")) << model;
    EXPECT_THAT(Faults(cpu, WithListsFrom(cuda, -1)), ElementsAre("lists_shifted")) << model;
    EXPECT_THAT(Faults(cpu, WithListsOnlyFrom(cuda, -1)), ElementsAre("lists_shifted")) << model;
    EXPECT_THAT(Verdict(Compared(WithListsOnlyFrom(cpu, -1), cpu)),
                HasSubstr("The lists of A belong one token further back"));
    const auto other = [](int32_t id) { return id + 5; };
    EXPECT_THAT(Faults(cpu, WithoutFirst(cpu, 1)), ElementsAre("tokens_shifted")) << model;
    EXPECT_THAT(Faults(cpu, Changed(Renumbered(cpu, other),
                                    [](RecordedPosition& position) {
                                      position.sampled.text.reset();
                                      for (RecordedToken& token : position.top) token.text.reset();
                                    })),
                ElementsAre("token_numbers"))
        << model;
  }
}

TEST(NoiseTest, TheSizeOfTheNoiseIsNamed) {
  EXPECT_THAT(Verdict(Compared(Recorded("float32"), Recorded("float32"))),
              HasSubstr("The log-probs are equal"));
  EXPECT_THAT(Verdict(Compared(Recorded("float32"), Recorded("bfloat16"))),
              HasSubstr("the size that comes from bfloat16"));
  EXPECT_THAT(Verdict(Compared(Recorded("float32"), Recorded("4_bit"))),
              HasSubstr("the size that comes from 4-bit weights"));
  const std::vector<double> differences = Differences(Recorded("float32"), Recorded("4_bit"));
  EXPECT_THAT(
      Verdict(Compared(Recorded("float32"), WithNoise(Recorded("float32"), differences, 1e-4, 1))),
      HasSubstr("the size that comes from float32"));
}

}  // namespace
}  // namespace sis
