#include "client/cli/verdict_text.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace sis {
namespace {

struct Shown {
  const char* text;
  Colour colour;
};

// A verdict that only later versions know is none.
const Shown& ShownOf(v1::Verdict verdict) {
  static constexpr Shown kByVerdict[] = {{"-", Colour::kNone},
                                         {"healthy", Colour::kGreen},
                                         {"! look", Colour::kYellow},
                                         {"!! BROKEN", Colour::kRed}};
  return kByVerdict[v1::Verdict_IsValid(verdict) ? verdict : v1::VERDICT_UNSPECIFIED];
}

}  // namespace

std::string VerdictText(v1::Verdict verdict) { return ShownOf(verdict).text; }

Colour ColourOf(v1::Verdict verdict) { return ShownOf(verdict).colour; }

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

std::string ReasonText(v1::MissingReason reason) {
  return absl::AsciiStrToLower(absl::StrReplaceAll(v1::MissingReason_Name(reason), {{"_", " "}}));
}

}  // namespace sis
