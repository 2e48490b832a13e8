#include "client/cli/verdict_text.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"

namespace sis {

std::string VerdictText(v1::Verdict verdict) {
  switch (verdict) {
    case v1::HEALTHY:
      return "healthy";
    case v1::WORTH_A_LOOK:
      return "! look";
    case v1::BROKEN:
      return "!! BROKEN";
    default:
      return "-";
  }
}

std::vector<std::string> FindingLines(const v1::Run& run) {
  std::vector<std::string> lines;
  for (const v1::Finding& finding : run.findings()) {
    lines.push_back(absl::StrCat(VerdictText(finding.verdict()), "  ", finding.reason(), " (",
                                 finding.rule(), ")"));
    lines.push_back(absl::StrCat("    ", finding.action()));
  }
  return lines;
}

std::vector<v1::Run> WorstFirst(const v1::ListRunsResponse& runs) {
  std::vector<v1::Run> sorted(runs.runs().begin(), runs.runs().end());
  std::ranges::stable_sort(sorted, std::greater<>(), &v1::Run::verdict);
  return sorted;
}

}  // namespace sis
