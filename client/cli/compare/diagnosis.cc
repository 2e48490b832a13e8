#include "client/cli/compare/diagnosis.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/compare/checks.h"

namespace sis {
namespace {

bool AnyFault(std::span<const Check> checks) {
  return std::any_of(checks.begin(), checks.end(),
                     [](const Check& check) { return check.fault(); });
}

// Replaces what a check found with why it does not count.
void Dismiss(std::span<Check> checks, const std::string& why) {
  for (Check& check : checks) check.Untested(why);
}

std::string WithoutFault(size_t positions, const DifferenceSize& size) {
  if (positions == 0) return "There is nothing to compare: no position is in both files.";
  if (size.positions == 0) return "No check found a fault, but no position has a ratio.";
  return absl::StrCat(
      size.is_noise ? "No fault was found. " : "Whether there is a fault can't be told. ",
      size.meaning);
}

}  // namespace

Diagnosis Diagnose(const RecordedPair& pair, const std::vector<ComparedPosition>& positions,
                   const Decisions& decisions) {
  Diagnosis diagnosis;
  diagnosis.size = MeasureDifference(decisions);
  diagnosis.left_out = CountLeftOut(pair, decisions);
  std::vector<Check>& checks = diagnosis.checks;
  checks = {
      CheckTokenTexts(pair),         CheckTokenNumbers(pair),      CheckSegmentation(pair),
      CheckTokensShifted(pair),      CheckListsShifted(positions), CheckSampledShifted(positions),
      CheckSampledColumn(pair),      CheckFilter(positions),       CheckTemperature(positions),
      CheckPenalty(pair, positions), CheckWeights(diagnosis.size)};
  // The first five say whether positions correspond, and the next three whether the log-probs are
  // of one kind.
  const std::span<Check> all(checks);
  if (AnyFault(all.first(5))) {
    Dismiss(all.subspan(5), "the positions do not correspond");
  } else if (all[5].fault()) {
    Dismiss(all.subspan(6), "the log-probs do not correspond");
  } else if (AnyFault(all.subspan(6, 4))) {
    Dismiss(all.last(1), "the log-probs are not of one kind");
  }
  diagnosis.fault = AnyFault(all);
  for (const Check& check : checks) {
    if (check.fault()) diagnosis.verdict.push_back(check.finding);
  }
  if (!diagnosis.fault) {
    diagnosis.undecided = diagnosis.size.positions == 0 || !diagnosis.size.is_noise;
    diagnosis.verdict.push_back(WithoutFault(positions.size(), diagnosis.size));
  }
  if (!diagnosis.left_out.empty()) {
    diagnosis.verdict.push_back(DescribeLeftOut(diagnosis.left_out, diagnosis.size.positions));
  }
  return diagnosis;
}

}  // namespace sis
