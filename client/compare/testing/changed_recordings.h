// Recordings of real engines, and what faults and noise make of them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
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
#include "absl/strings/str_cat.h"
#include "client/compare/comparison.h"

namespace sis::changed_recordings {

using File = std::vector<RecordedSequence>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

inline File Read(const std::string& path) {
  std::ifstream file(path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  auto sequences = ParseRecordedLogProbs(text, path);
  EXPECT_TRUE(sequences.ok()) << sequences.status();
  return *std::move(sequences);
}

inline const File& Recorded(const std::string& name) {
  static auto& files = *new std::map<std::string, File>;
  if (!files.contains(name)) {
    files[name] = Read(absl::StrCat("client/recorded/testdata/smollm2_", name, ".jsonl"));
  }
  return files[name];
}

inline Comparison Compared(const File& a, const File& b) {
  auto comparison = Compare(a, "a.json", b, "b.json", {});
  EXPECT_TRUE(comparison.ok()) << comparison.status();
  return *std::move(comparison);
}

inline std::vector<std::string> FaultsOf(const Comparison& comparison) {
  std::vector<std::string> names;
  for (const Check& check : comparison.diagnosis.checks) {
    if (check.fault()) names.emplace_back(check.name);
  }
  EXPECT_EQ(comparison.diagnosis.fault, !names.empty());
  return names;
}

inline std::vector<std::string> Faults(const File& a, const File& b) {
  return FaultsOf(Compared(a, b));
}

inline const Check& Named(const Comparison& comparison, const std::string& name) {
  for (const Check& check : comparison.diagnosis.checks) {
    if (check.name == name) return check;
  }
  ADD_FAILURE() << name;
  return comparison.diagnosis.checks.front();
}

inline std::string Verdict(const Comparison& comparison) {
  return comparison.diagnosis.verdict.front();
}

template <typename Change>
File Changed(File file, Change change) {
  for (RecordedSequence& sequence : file) {
    for (RecordedPosition& position : sequence.positions) change(position);
  }
  return file;
}

// The sampled token's log-prob as the list has it; none if it is not in the list.
inline void TakeSampledFromList(RecordedPosition& position) {
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

inline File AtTemperature(const File& file, double temperature) {
  return Changed(file, [&](RecordedPosition& position) {
    Renormalise(position, [&](const RecordedToken& token) { return token.log_prob / temperature; });
  });
}

inline File WithTopK(const File& file, size_t k) {
  return Changed(file, [&](RecordedPosition& position) {
    position.top.resize(std::min(k, position.top.size()));
    double mass = 0;
    for (const RecordedToken& token : position.top) mass += std::exp(token.log_prob);
    for (RecordedToken& token : position.top) token.log_prob -= static_cast<float>(std::log(mass));
    TakeSampledFromList(position);
  });
}

// Lists cut, not renormalised: the engine was asked for fewer.
inline File Shortened(const File& file, size_t k) {
  return Changed(file, [&](RecordedPosition& position) {
    position.top.resize(std::min(k, position.top.size()));
  });
}

inline File WithPresencePenalty(File file, double penalty) {
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
inline File WithListsFrom(const File& file, int shift) {
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
inline File WithListsOnlyFrom(const File& file, int shift) {
  File shifted = WithListsFrom(file, shift);
  for (size_t i = 0; i < file.size(); ++i) {
    for (size_t t = 0; t < file[i].positions.size(); ++t) {
      shifted[i].positions[t].sampled = file[i].positions[t].sampled;
    }
  }
  return shifted;
}

inline File WithSampledFrom(const File& file, int shift) {
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

inline File WithoutFirst(File file, size_t count) {
  for (RecordedSequence& sequence : file) {
    sequence.positions.erase(sequence.positions.begin(), sequence.positions.begin() + count);
  }
  return file;
}

inline File WithoutLists(const File& file) {
  return Changed(file, [](RecordedPosition& position) { position.top.clear(); });
}

// Each id replaced by another one.
inline File Renumbered(const File& file, const std::function<int32_t(int32_t)>& number) {
  return Changed(file, [&](RecordedPosition& position) {
    position.sampled.id = number(*position.sampled.id);
    for (RecordedToken& token : position.top) token.id = number(*token.id);
  });
}

// Every second token is one with the next.
inline File Merged(const File& file) {
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
inline std::vector<double> Differences(const File& a, const File& b) {
  const Comparison comparison = Compared(a, b);
  std::vector<double> differences;
  for (const ComparedPosition& position : comparison.whole.positions) {
    const CentredLogProbs centred = Centred(*position.a, *position.b);
    for (size_t i = 0; i < centred.ids.size(); ++i) {
      differences.push_back(centred.b[i] - centred.a[i]);
    }
  }
  return differences;
}

// Differences drawn with replacement and scaled, added to each listed log-prob.
inline File WithNoise(const File& file, const std::vector<double>& differences, double scale,
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
inline File WithoutIds(const File& file) {
  return Changed(file, [](RecordedPosition& position) {
    position.sampled.id.reset();
    for (RecordedToken& token : position.top) token.id.reset();
  });
}

}  // namespace sis::changed_recordings
