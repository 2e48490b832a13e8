#include "client/cli/verdict_text.h"

#include <algorithm>
#include <functional>
#include <iterator>

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

Colour ColourOf(v1::Verdict verdict) {
  switch (verdict) {
    case v1::HEALTHY:
      return Colour::kGreen;
    case v1::WORTH_A_LOOK:
      return Colour::kYellow;
    case v1::BROKEN:
      return Colour::kRed;
    default:
      return Colour::kNone;
  }
}

std::vector<std::string> FindingLines(const v1::Run& run, const Terminal& terminal) {
  std::vector<std::string> lines;
  for (const v1::Finding& finding : run.findings()) {
    const std::string verdict =
        terminal.Painted(VerdictText(finding.verdict()), ColourOf(finding.verdict()));
    for (const std::string& line :
         {absl::StrCat(verdict, "  ", finding.reason(), " (", finding.rule(), ")"),
          absl::StrCat("    ", finding.action())}) {
      std::ranges::move(Wrapped(line, terminal, 4), std::back_inserter(lines));
    }
  }
  return lines;
}

std::vector<v1::Run> WorstFirst(const v1::ListRunsResponse& runs) {
  std::vector<v1::Run> sorted(runs.runs().begin(), runs.runs().end());
  std::ranges::stable_sort(sorted, std::greater<>(), &v1::Run::verdict);
  return sorted;
}

}  // namespace sis
