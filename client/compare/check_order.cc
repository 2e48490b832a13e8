#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "client/compare/checks.h"
#include "client/compare/moments.h"

namespace sis {
namespace {

// Tokens from the start by which sequences are told apart, and how many that share them are tried.
constexpr size_t kStart = 8;
constexpr size_t kMostTried = 64;

using Tokens = std::vector<int32_t>;

Tokens StartOf(const RecordedSets& sets) {
  Tokens tokens;
  for (size_t t = 0; t < std::min(kStart, sets.size()); ++t) tokens.push_back(sets[t].sampled_id);
  return tokens;
}

// Mean difference of the log-probs that the files give sampled tokens; NaN if most have none.
double Difference(const RecordedSets& a, const RecordedSets& b) {
  Moments differences;
  const size_t shorter = std::min(a.size(), b.size());
  for (size_t t = 0; t < shorter; ++t) {
    const double difference = std::abs(a[t].given_log_prob - b[t].given_log_prob);
    if (std::isfinite(difference)) differences.Add(difference);
  }
  const bool most = differences.count >= kStart && differences.count * 2 >= shorter;
  return most ? differences.mean() : std::nan("");
}

struct Swapped {
  size_t sequence;
  size_t other;  // of B, which fits
  bool values_only;
};

// Sequences of a file by how they begin.
using ByStart = absl::flat_hash_map<Tokens, std::vector<size_t>>;

// One of `file` that goes on as `a` does, other than `except`: answers to one prompt may begin
// alike.
std::optional<size_t> Fitting(const RecordedSets& a, std::span<const ComparedSequence> sequences,
                              const RecordedSets* ComparedSequence::*file, const ByStart& by_start,
                              size_t except) {
  const auto found = by_start.find(StartOf(a));
  if (found == by_start.end()) return std::nullopt;
  const std::vector<size_t>& alike = found->second;
  for (size_t n = 0; n < std::min(kMostTried, alike.size()); ++n) {
    const RecordedSets& other = *(sequences[alike[n]].*file);
    if (alike[n] == except) continue;
    if (EqualTokens(a, other) * 2 >= std::min(a.size(), other.size())) return alike[n];
  }
  return std::nullopt;
}

// Sequences that part at once, where another one of B goes on as they do. None and false if that
// tells nothing, as at least as many others part: each file has its own samples then, and those of
// one prompt may be alike.
bool FindByTokens(std::span<const ComparedSequence> sequences, std::vector<Swapped>& swapped) {
  std::vector<size_t> parted;
  size_t all_parted = 0;
  ByStart a_by_start, b_by_start;
  for (const ComparedSequence& sequence : sequences) {
    a_by_start[StartOf(*sequence.a)].push_back(sequence.index);
    const size_t length = std::min(sequence.a->size(), sequence.b->size());
    const size_t equal = EqualTokens(*sequence.a, *sequence.b);
    all_parted += equal < length;
    if (length < kStart || equal * 4 >= length) continue;
    parted.push_back(sequence.index);
    b_by_start[StartOf(*sequence.b)].push_back(sequence.index);
  }
  for (const size_t i : parted) {
    const RecordedSets& a = *sequences[i].a;
    const auto other = Fitting(a, sequences, &ComparedSequence::b, b_by_start, i);
    if (!other || Fitting(a, sequences, &ComparedSequence::a, a_by_start, i)) continue;
    swapped.push_back({i, *other, false});
  }
  const size_t others = all_parted - swapped.size();
  const bool most = others * 2 > sequences.size();
  if (swapped.size() > others || (swapped.empty() && !most)) return true;
  swapped.clear();
  return false;
}

// Sequences with the right tokens, where the log-probs of another one of B fit.
void FindByValues(std::span<const ComparedSequence> sequences, std::vector<Swapped>& swapped) {
  constexpr double kLeast = 0.3;  // nats
  std::vector<std::pair<size_t, double>> differing;
  for (const ComparedSequence& sequence : sequences) {
    if (EqualTokens(*sequence.a, *sequence.b) < kStart) continue;
    const double difference = Difference(*sequence.a, *sequence.b);
    if (difference >= kLeast) differing.emplace_back(sequence.index, difference);
    if (differing.size() == kMostTried) break;
  }
  for (const auto& [i, own] : differing) {
    for (const auto& [j, unused] : differing) {
      if (i == j || !(Difference(*sequences[i].a, *sequences[j].b) < own / 4)) continue;
      swapped.push_back({i, j, true});
      break;
    }
  }
}

}  // namespace

Check CheckOrder(const Part& part) {
  Check check{.name = "order",
              .question = "Do the files hold the sequences in the same order?",
              .statistic = "sequences of A that another one of B fits, but not B's at their place",
              .limit = 1,
              .reason = "to fit, half of the tokens must agree, or the log-probs four times better",
              .setting =
                  "the order in which responses are collected: match them by their request's "
                  "id, not by when they finish"};
  const size_t sequences = part.sequences.size();
  if (sequences < 2) return check.Untested("there are not two sequences");
  std::vector<Swapped> swapped;
  const bool tokens_tell = FindByTokens(part.sequences, swapped);
  FindByValues(part.sequences, swapped);
  if (!tokens_tell && swapped.empty()) {
    return check.Untested("too many sequences part: each file seems to have its own samples");
  }
  std::ranges::sort(swapped, {}, &Swapped::sequence);
  std::string finding;
  if (!swapped.empty()) {
    const Swapped& first = swapped.front();
    finding = absl::StrCat("Sequences are in another order: ", swapped.size(), " of ", sequences,
                           " of A are others in B. ",
                           first.values_only ? "The log-probs of sequence " : "Sequence ",
                           first.sequence, " of A", first.values_only ? " fit those of" : " is",
                           " sequence ", first.other, " of B.");
  }
  check.Decide(static_cast<double>(swapped.size()), finding);
  if (check.fault() && swapped.size() < sequences) {
    for (const Swapped& one : swapped) check.sequences.push_back(one.sequence);
  }
  return check;
}

}  // namespace sis
