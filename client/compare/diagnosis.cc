#include "client/compare/diagnosis.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <span>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/compare/checks.h"

namespace sis {
namespace {

const Check* FirstFault(std::span<const Check> checks) {
  const auto fault = std::ranges::find_if(checks, &Check::fault);
  return fault == checks.end() ? nullptr : &*fault;
}

bool AnyFault(std::span<const Check> checks) { return FirstFault(checks) != nullptr; }

// Replaces what a check found with why it does not count.
void Dismiss(std::span<Check> checks, const std::string& why) {
  for (Check& check : checks) check.Untested(why);
}

// Whether positions correspond, and then whether their log-probs are of one kind, and how far they
// are apart.
std::vector<Check> Ask(const Part& part) {
  absl::flat_hash_set<int32_t> biased;
  std::vector<Check> checks = {
      CheckTokensShifted(part), CheckListsShifted(part), CheckSampledShifted(part),
      CheckSampledColumn(part), CheckStretch(part),      CheckFilter(part),
      CheckTemperature(part),   CheckBias(part, biased), CheckPenalty(part, biased),
      CheckUneven(part),        CheckOutliers(part),     CheckWeights(part)};
  const std::span<Check> all(checks);
  if (all[3].fault()) Dismiss(all.subspan(4, 1), "the sampled log-probs are not of one kind");
  if (AnyFault(all.first(2))) {
    Dismiss(all.subspan(2), "the positions do not correspond");
  } else if (all[2].fault()) {
    Dismiss(all.subspan(3), "the log-probs do not correspond");
  } else if (all[4].fault()) {
    Dismiss(all.subspan(5), "not all positions are of one kind");
  } else if (all[3].fault() || AnyFault(all.subspan(5, 4))) {
    Dismiss(all.last(3), "the log-probs are not of one kind");
  } else if (all[9].fault()) {
    Dismiss(all.last(2), "the differences are those of single sequences");
  } else if (all[10].fault()) {
    Dismiss(all.last(1), "the differences are those of a few positions");
  }
  return checks;
}

Check& Named(std::span<Check> checks, absl::string_view name) {
  return *std::ranges::find(checks, name, &Check::name);
}

bool PositionsDiffer(const Check& check) {
  return check.name == "lists_shifted" || check.name == "sampled_shifted";
}

bool IsOfTokens(const Check& check) { return check.name == "bias" || check.name == "penalty"; }

// The fault of each sequence by itself, where there is enough of it to tell.
struct Alone {
  std::map<absl::string_view, std::vector<size_t>> by_fault;
  size_t tested = 0;
};

Alone AskEach(const Part& part) {
  // Of one sequence; below it chance looks like a fault.
  constexpr size_t kEnough = 16;
  Alone alone;
  for (const ComparedSequence& sequence : part.sequences) {
    if (std::min(sequence.a->size(), sequence.b->size()) < kEnough) continue;
    const Part one = part.Only({&sequence.index, 1});
    ++alone.tested;
    const std::vector<Check> checks =
        one.positions.size() < kEnough ? std::vector{CheckTokensShifted(one)} : Ask(one);
    // Tokens that are moved wherever they stand are told by all sequences, or not at all.
    if (const Check* const fault = FirstFault(checks); fault && !IsOfTokens(*fault)) {
      alone.by_fault[fault->name].push_back(sequence.index);
    }
  }
  return alone;
}

std::vector<size_t> Without(const Part& part, const std::vector<size_t>& left_out) {
  std::vector<size_t> rest;
  for (const ComparedSequence& sequence : part.sequences) {
    if (!std::binary_search(left_out.begin(), left_out.end(), sequence.index)) {
      rest.push_back(sequence.index);
    }
  }
  return rest;
}

// Says which sequences have it, of all that there are.
void NameSequences(Check& check, const std::vector<size_t>& sequences, size_t of) {
  constexpr size_t kMostNamed = 8;
  check.sequences = sequences;
  const size_t named = std::min(kMostNamed, sequences.size());
  check.finding = absl::StrCat(
      "In ", sequences.size(), " of ", of, " sequences (",
      absl::StrJoin(sequences.begin(), sequences.begin() + static_cast<ptrdiff_t>(named), ", "),
      named < sequences.size() ? ", ..." : "", ") alone: ", check.finding);
}

// All sequences, those that differ from most by themselves.
std::vector<Check> AskApart(const Part& part) {
  std::vector<Check> together = Ask(part);
  const Check* const fault = FirstFault(together);
  if (part.sequences.size() < 2 || (fault != nullptr && IsOfTokens(*fault))) return together;
  const Alone alone = AskEach(part);
  struct Group {
    std::vector<size_t> sequences;
    Check check;  // of all of them
  };
  std::vector<Group> groups;
  for (const auto& [name, sequences] : alone.by_fault) {
    std::vector<Check> of_these = Ask(part.Only(sequences));
    const Check& found = Named(of_these, name);
    if (found.fault()) groups.push_back({sequences, found});
  }
  const auto others = [&] {
    std::vector<size_t> odd;
    for (const Group& group : groups) {
      odd.insert(odd.end(), group.sequences.begin(), group.sequences.end());
    }
    std::sort(odd.begin(), odd.end());
    return Without(part, odd);
  };
  const size_t odd = part.sequences.size() - others().size();
  if (odd == 0 || odd * 2 > alone.tested) return together;
  std::vector<Check> checks = Ask(part.Only(others()));
  // What the others have as well is no fault of single sequences.
  const size_t shared = std::erase_if(
      groups, [&](const Group& group) { return Named(checks, group.check.name).fault(); });
  if (shared > 0) checks = Ask(part.Only(others()));
  for (Group& group : groups) {
    NameSequences(group.check, group.sequences, part.sequences.size());
    Named(checks, group.check.name) = std::move(group.check);
  }
  return checks;
}

std::string WithoutFault(size_t positions, const DifferenceSize& size, bool left_out, bool of_run) {
  if (positions == 0) return "There is nothing to compare: no position is on both sides.";
  if (size.positions == 0) return "No check found a fault, but no position has a ratio.";
  if (!size.is_noise) return absl::StrCat("Whether there is a fault can't be told. ", size.meaning);
  // A run may be broken though its tokens are well.
  return absl::StrCat(of_run ? "Of its tokens: no fault was found" : "No fault was found",
                      left_out ? " in what can be compared" : "", ". ", size.meaning);
}

// A tenth of all and more.
bool IsMuch(const std::vector<LeftOut>& left_out, const DifferenceSize& size) {
  size_t positions = 0;
  for (const LeftOut& part : left_out) positions += part.positions;
  return positions * 9 >= size.positions;
}

// Without checks as yet.
Diagnosis Measure(const Part& whole, std::vector<LeftOut> left_out) {
  return {.size = MeasureDifference(whole),
          .profile = ProfileOf(whole),
          .left_out = std::move(left_out)};
}

// Puts the check of filters first, as a fault unless the policies agree. Then the last three
// checks, which any difference of kinds looks like, are not asked.
void NameFilter(const std::string& filter, Diagnosis& diagnosis) {
  std::vector<Check>& checks = diagnosis.checks;
  const bool agree = !AnyFault(checks) && diagnosis.size.is_noise;
  const auto found = std::ranges::find(checks, "filter", &Check::name);
  std::rotate(checks.begin(), found, found + 1);
  if (agree) return;
  Check& check = checks.front();
  check.outcome = Check::Outcome::kFault;
  check.finding = absl::StrCat(
      "The records are renormalised over the tokens that a filter left (", filter,
      "): ratios mean something only if the current policy is renormalised over the same tokens.");
  for (const char* const name : {"uneven", "outliers", "weights"}) {
    Named(checks, name).Untested("the log-probs are not of one kind");
  }
}

// What follows from checks and size.
void Conclude(size_t positions, bool of_run, Diagnosis& diagnosis) {
  diagnosis.fault = AnyFault(diagnosis.checks);
  for (const Check& check : diagnosis.checks) {
    if (!check.fault()) continue;
    diagnosis.verdict.push_back(absl::StrCat(check.finding, " Look at ", check.setting, "."));
  }
  if (!diagnosis.fault) {
    diagnosis.undecided = diagnosis.size.positions == 0 || !diagnosis.size.is_noise;
    diagnosis.verdict.push_back(WithoutFault(positions, diagnosis.size,
                                             IsMuch(diagnosis.left_out, diagnosis.size), of_run));
  }
  if (!diagnosis.left_out.empty()) {
    diagnosis.verdict.push_back(DescribeLeftOut(diagnosis.left_out, diagnosis.size.positions));
  }
}

}  // namespace

Diagnosis Diagnose(const RecordedPair& pair, const Part& whole, const Decisions& decisions) {
  Diagnosis diagnosis = Measure(whole, CountLeftOut(pair, decisions));
  std::vector<Check>& checks = diagnosis.checks;
  checks = {CheckTokenTexts(pair), CheckTokenNumbers(pair), CheckSegmentation(pair)};
  const bool same_tokens = !AnyFault(checks);
  Check order = CheckOrder(whole);
  if (!same_tokens) order.Untested("the tokens do not correspond");
  const bool all_elsewhere = order.fault() && order.sequences.empty();
  std::vector<Check> others = same_tokens && !all_elsewhere
                                  ? AskApart(whole.Only(Without(whole, order.sequences)))
                                  : Ask(whole);
  if (!same_tokens || all_elsewhere) Dismiss(others, "the positions do not correspond");
  checks.push_back(std::move(order));
  std::ranges::move(others, std::back_inserter(checks));
  Conclude(whole.positions.size(), /*of_run=*/false, diagnosis);
  return diagnosis;
}

Diagnosis DiagnoseRun(const RecordedPair& pair, const Decisions& decisions,
                      std::vector<LeftOut> left_out, const std::string& filter) {
  const Part whole = WholeOf(pair, decisions);
  Diagnosis diagnosis = Measure(whole, std::move(left_out));
  std::vector<Check>& checks = diagnosis.checks;
  checks = AskApart(whole);
  // One reads the other's records: the tokens are the same, in the same order.
  checks.erase(checks.begin());
  Check zeros = CheckZeros(whole), staleness = CheckStaleness(whole),
        coverage = CheckCoverage(whole);
  const Check* const first = FirstFault(checks);
  if (zeros.fault()) {
    Dismiss(checks, "some log-probs are padding");
  } else if (staleness.fault()) {
    Dismiss(checks, "the differences are those of stale tokens");
  } else if (first != nullptr && PositionsDiffer(*first)) {
    coverage.Untested("the positions do not correspond");
  }
  checks.insert(checks.begin(), std::move(zeros));
  checks.push_back(CheckAhead(whole));
  checks.push_back(std::move(staleness));
  checks.push_back(std::move(coverage));
  if (!filter.empty()) NameFilter(filter, diagnosis);
  Conclude(whole.positions.size(), /*of_run=*/true, diagnosis);
  if (!filter.empty() && !checks.front().fault()) {
    diagnosis.verdict.insert(
        diagnosis.verdict.begin(),
        absl::StrCat("The records are renormalised over the tokens that a filter left (", filter,
                     "), and the current policy agrees with them."));
  }
  return diagnosis;
}

}  // namespace sis
