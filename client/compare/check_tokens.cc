#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/compare/checks.h"

namespace sis {
namespace {

// A tokenizer's own letters for what can't be seen, which some engines decode and others don't.
std::string Decoded(const std::string& text) {
  return absl::StrReplaceAll(text, {{"Ġ", " "}, {"▁", " "}, {"Ċ", "\n"}, {"\xEF\xBF\xBD", ""}});
}

// What the text of a recording is made of, as far as the file says what its tokens stand for.
std::vector<std::string> SampledTexts(const Recording& recording, const RecordedSets& sets) {
  std::vector<std::string> texts;
  for (const RecordedSet& set : sets) {
    const auto text = recording.texts.find(set.sampled_id);
    if (text == recording.texts.end()) break;
    texts.push_back(Decoded(text->second));
  }
  return texts;
}

std::string Join(const std::vector<std::string>& texts, size_t first) {
  std::string joined;
  for (size_t i = first; i < texts.size(); ++i) joined += texts[i];
  return joined;
}

// Mean of |a - b| over the ranks that both sets have, of at most five: whatever the ids are.
double ProfileDistance(const RecordedSet& a, const RecordedSet& b) {
  constexpr size_t kRanks = 5;
  const size_t ranks = std::min({a.top.size(), b.top.size(), kRanks});
  double sum = 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    sum += std::abs(a.top[rank].log_prob - b.top[rank].log_prob);
  }
  return sum / static_cast<double>(ranks);
}

// The difference of most probable ids that most positions have, if nine tenths do.
std::string CommonOffset(const std::map<int32_t, size_t>& offsets, size_t positions) {
  for (const auto& [offset, count] : offsets) {
    if (count * 10 >= positions * 9) return absl::StrFormat(": those of B are %+d", offset);
  }
  return "";
}

}  // namespace

Check CheckTokenTexts(const RecordedPair& pair) {
  constexpr size_t kEnough = 10;
  Check check{
      .name = "token_texts",
      .question = "Do ids stand for the same texts?",
      .statistic = "share of ids with a text in both files whose texts differ",
      .limit = 0.2,
      .reason = "with one tokenizer only the spelling of single tokens differs",
      .setting = "the tokenizer of both sides: its name, its revision, tokens that were added"};
  size_t both = 0, different = 0;
  std::string example;
  for (const auto& [id, text] : pair.a.texts) {
    const auto other = pair.b.texts.find(id);
    if (other == pair.b.texts.end()) continue;
    const std::string a = Decoded(text), b = Decoded(other->second);
    // A part of a character is spelled by engines as they like.
    if (a.empty() || b.empty()) continue;
    ++both;
    if (a == b) continue;
    ++different;
    if (example.empty()) example = absl::StrCat("; ", id, " is \"", a, "\" and \"", b, "\"");
  }
  if (!pair.by_id || both < kEnough) {
    return check.Untested("too few tokens have an id and a text in both files");
  }
  return check.Decide(
      static_cast<double>(different) / static_cast<double>(both),
      absl::StrCat("The tokenizers differ: the same ids stand for other texts", example, "."));
}

Check CheckTokenNumbers(const RecordedPair& pair) {
  constexpr size_t kEnough = 5;
  Check check{
      .name = "token_numbers",
      .question = "Are tokens numbered alike?",
      .statistic =
          "log-probs by rank, where the ids have nothing in common: their mean "
          "difference at the same position over that at neighbours",
      .side = Check::Side::kBelow,
      .limit = 0.5,
      .reason = "it is near 1 for unrelated positions, and below 0.2 for the same model",
      .setting = "the tokenizer of both sides: its revision, tokens that were added before others"};
  double variation = 0, mass = 0, same = 0, neighbour = 0;
  size_t positions = 0, neighbours = 0;
  std::map<int32_t, size_t> offsets;
  for (size_t i = 0; i < pair.a.sequences.size(); ++i) {
    const RecordedSets& a = pair.a.sequences[i];
    const RecordedSets& b = pair.b.sequences[i];
    for (size_t t = 0; t < std::min(a.size(), b.size()); ++t) {
      if (a[t].top.empty() || b[t].top.empty()) continue;
      ++positions;
      variation += TotalVariation(a[t], b[t]);
      mass += (MassOf(a[t]) + MassOf(b[t])) / 2;
      same += ProfileDistance(a[t], b[t]);
      ++offsets[b[t].top[0].id - a[t].top[0].id];
      if (t + 1 < b.size() && !b[t + 1].top.empty()) {
        ++neighbours;
        neighbour += ProfileDistance(a[t], b[t + 1]);
      }
    }
  }
  if (!pair.by_id || positions < kEnough || neighbours < kEnough) {
    return check.Untested("too few positions have lists with ids in both files");
  }
  // Lists without a token in common vary by all that they hold.
  if (variation < 0.9 * mass || neighbour == 0) return check.Clear();
  return check.Decide(
      same / static_cast<double>(positions) / (neighbour / static_cast<double>(neighbours)),
      absl::StrCat("The vocabularies are numbered differently: the same probabilities "
                   "stand under other ids",
                   CommonOffset(offsets, positions), "."));
}

Check CheckSegmentation(const RecordedPair& pair) {
  // Bytes of text that chance does not make equal.
  constexpr size_t kLongEnough = 16;
  Check check{.name = "segmentation",
              .question = "Is the text cut into the same tokens?",
              .statistic = "of the sequences whose tokens part, the share whose text goes on alike",
              .limit = 0.5,
              .reason =
                  "a tokenizer cuts a text in one way; engines that sample other tokens soon "
                  "write another text",
              .setting = "the tokenizer; send ids of tokens to the trainer, never text"};
  size_t parted = 0, alike = 0;
  std::string example;
  for (size_t i = 0; i < pair.a.sequences.size(); ++i) {
    const std::vector<std::string> a = SampledTexts(pair.a, pair.a.sequences[i]);
    const std::vector<std::string> b = SampledTexts(pair.b, pair.b.sequences[i]);
    const auto [part, other] =
        std::mismatch(a.begin(), a.begin() + std::min(a.size(), b.size()), b.begin());
    if (part == a.end() || other == b.end()) continue;
    const size_t first = part - a.begin();
    const std::string rest_a = Join(a, first), rest_b = Join(b, first);
    if (std::min(rest_a.size(), rest_b.size()) < kLongEnough) continue;
    ++parted;
    if (rest_a.compare(0, kLongEnough, rest_b, 0, kLongEnough) != 0) continue;
    ++alike;
    if (example.empty()) {
      example = absl::StrCat("; in sequence ", i, " at position ", first, " \"", *part, "\" and \"",
                             *other, "\" begin the same text");
    }
  }
  if (parted == 0) return check.Untested("no two texts part");
  return check.Decide(
      static_cast<double>(alike) / static_cast<double>(parted),
      absl::StrCat("The tokenizers differ: they cut the same text differently", example, "."));
}

}  // namespace sis
