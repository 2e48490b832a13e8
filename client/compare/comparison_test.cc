// Faults made on purpose of recordings of real engines, each of which must be named and no other;
// and numerical noise, which must not be named at all.
#include "client/compare/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace sis {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using File = std::vector<RecordedSequence>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

File Read(const std::string& path) {
  std::ifstream file(path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  auto sequences = ParseRecordedLogProbs(text, path);
  EXPECT_TRUE(sequences.ok()) << sequences.status();
  return *std::move(sequences);
}

const File& Recorded(const std::string& name) {
  static auto& files = *new std::map<std::string, File>;
  if (!files.contains(name)) {
    files[name] = Read(absl::StrCat("client/recorded/testdata/smollm2_", name, ".jsonl"));
  }
  return files[name];
}

Comparison Compared(const File& a, const File& b) {
  auto comparison = Compare(a, "a.json", b, "b.json", {});
  EXPECT_TRUE(comparison.ok()) << comparison.status();
  return *std::move(comparison);
}

std::vector<std::string> FaultsOf(const Comparison& comparison) {
  std::vector<std::string> names;
  for (const Check& check : comparison.diagnosis.checks) {
    if (check.fault()) names.push_back(check.name);
  }
  EXPECT_EQ(comparison.diagnosis.fault, !names.empty());
  return names;
}

std::vector<std::string> Faults(const File& a, const File& b) { return FaultsOf(Compared(a, b)); }

const Check& Named(const Comparison& comparison, const std::string& name) {
  for (const Check& check : comparison.diagnosis.checks) {
    if (check.name == name) return check;
  }
  ADD_FAILURE() << name;
  return comparison.diagnosis.checks.front();
}

std::string Verdict(const Comparison& comparison) { return comparison.diagnosis.verdict.front(); }

// --- What faults do to a file ---

template <typename Change>
File Changed(File file, Change change) {
  for (RecordedSequence& sequence : file) {
    for (RecordedPosition& position : sequence.positions) change(position);
  }
  return file;
}

// The sampled token's log-prob as the list has it; none if it is not in the list.
void TakeSampledFromList(RecordedPosition& position) {
  position.sampled.log_prob = -kInfinity;
  for (const RecordedToken& token : position.top) {
    if (token.id == position.sampled.id) position.sampled.log_prob = token.log_prob;
  }
}

// Gives each listed token another log-prob, and normalises as if what is not listed kept its own.
template <typename NewLogProb>
void Renormalise(RecordedPosition& position, NewLogProb new_log_prob) {
  double listed = 0, changed = 0;
  for (RecordedToken& token : position.top) {
    listed += std::exp(token.log_prob);
    token.log_prob = static_cast<float>(new_log_prob(token));
    changed += std::exp(token.log_prob);
  }
  const double total = changed + std::max(0.0, 1 - listed);
  for (RecordedToken& token : position.top) token.log_prob -= static_cast<float>(std::log(total));
  TakeSampledFromList(position);
}

File AtTemperature(const File& file, double temperature) {
  return Changed(file, [&](RecordedPosition& position) {
    Renormalise(position, [&](const RecordedToken& token) { return token.log_prob / temperature; });
  });
}

File WithTopK(const File& file, size_t k) {
  return Changed(file, [&](RecordedPosition& position) {
    position.top.resize(std::min(k, position.top.size()));
    double mass = 0;
    for (const RecordedToken& token : position.top) mass += std::exp(token.log_prob);
    for (RecordedToken& token : position.top) token.log_prob -= static_cast<float>(std::log(mass));
    TakeSampledFromList(position);
  });
}

// Lists cut, not renormalised: the engine was asked for fewer.
File Shortened(const File& file, size_t k) {
  return Changed(file, [&](RecordedPosition& position) {
    position.top.resize(std::min(k, position.top.size()));
  });
}

File WithPresencePenalty(File file, double penalty) {
  for (RecordedSequence& sequence : file) {
    absl::flat_hash_set<int32_t> seen;
    for (RecordedPosition& position : sequence.positions) {
      Renormalise(position, [&](const RecordedToken& token) {
        return token.log_prob - (seen.contains(*token.id) ? penalty : 0);
      });
      seen.insert(*position.sampled.id);
    }
  }
  return file;
}

// Log-probs and lists of the position `shift` further on, at unchanged tokens.
File WithListsFrom(const File& file, int shift) {
  File shifted = file;
  for (size_t i = 0; i < file.size(); ++i) {
    const auto& positions = file[i].positions;
    const auto size = static_cast<int>(positions.size());
    for (int t = 0; t < size; ++t) {
      RecordedPosition& position = shifted[i].positions[t];
      position.top = positions[std::clamp(t + shift, 0, size - 1)].top;
      TakeSampledFromList(position);
    }
  }
  return shifted;
}

// The same, but the sampled tokens keep their own log-probs.
File WithListsOnlyFrom(const File& file, int shift) {
  File shifted = WithListsFrom(file, shift);
  for (size_t i = 0; i < file.size(); ++i) {
    for (size_t t = 0; t < file[i].positions.size(); ++t) {
      shifted[i].positions[t].sampled = file[i].positions[t].sampled;
    }
  }
  return shifted;
}

File WithSampledFrom(const File& file, int shift) {
  File shifted = file;
  for (size_t i = 0; i < file.size(); ++i) {
    const auto& positions = file[i].positions;
    const auto size = static_cast<int>(positions.size());
    for (int t = 0; t < size; ++t) {
      shifted[i].positions[t].sampled.log_prob =
          positions[std::clamp(t + shift, 0, size - 1)].sampled.log_prob;
    }
  }
  return shifted;
}

File WithoutFirst(File file, size_t count) {
  for (RecordedSequence& sequence : file) {
    sequence.positions.erase(sequence.positions.begin(), sequence.positions.begin() + count);
  }
  return file;
}

File WithoutLists(const File& file) {
  return Changed(file, [](RecordedPosition& position) { position.top.clear(); });
}

// Each id replaced by another one.
File Renumbered(const File& file, const std::function<int32_t(int32_t)>& number) {
  return Changed(file, [&](RecordedPosition& position) {
    position.sampled.id = number(*position.sampled.id);
    for (RecordedToken& token : position.top) token.id = number(*token.id);
  });
}

// Every second token is one with the next.
File Merged(const File& file) {
  File merged;
  int32_t id = 60000;
  for (const RecordedSequence& sequence : file) {
    RecordedSequence& into = merged.emplace_back();
    for (size_t t = 0; t + 1 < sequence.positions.size(); t += 2) {
      RecordedPosition position = sequence.positions[t];
      position.sampled.id = ++id;
      position.sampled.text =
          absl::StrCat(*position.sampled.text, *sequence.positions[t + 1].sampled.text);
      into.positions.push_back(std::move(position));
    }
  }
  return merged;
}

// All differences of listed log-probs between two recordings.
std::vector<double> Differences(const File& a, const File& b) {
  const auto pair = PairRecordings(a, "a", b, "b");
  std::vector<double> differences;
  for (const ComparedPosition& position : ComparedPositions(*pair)) {
    const CentredLogProbs centred = Centred(*position.a, *position.b);
    for (size_t i = 0; i < centred.ids.size(); ++i) {
      differences.push_back(centred.b[i] - centred.a[i]);
    }
  }
  return differences;
}

// Differences drawn with replacement and scaled, added to each listed log-prob.
File WithNoise(const File& file, const std::vector<double>& differences, double scale,
               unsigned seed) {
  std::mt19937 random(seed);
  return Changed(file, [&](RecordedPosition& position) {
    Renormalise(position, [&](const RecordedToken& token) {
      return token.log_prob + scale * differences[random() % differences.size()];
    });
    std::sort(
        position.top.begin(), position.top.end(),
        [](const RecordedToken& x, const RecordedToken& y) { return x.log_prob > y.log_prob; });
  });
}

// What engines of other vendors leave out.
File WithoutIds(const File& file) {
  return Changed(file, [](RecordedPosition& position) {
    position.sampled.id.reset();
    for (RecordedToken& token : position.top) token.id.reset();
  });
}

// --- Noise ---

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

// --- Faults, each between engines that also differ numerically ---

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

// --- The rest ---

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
  EXPECT_EQ(Compared(file, file).positions.size(), 200'000);
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
  EXPECT_EQ(comparison.a_to_b.top_k, 254);
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
