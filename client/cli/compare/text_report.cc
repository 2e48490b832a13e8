#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/compare/reports.h"

namespace sis {
namespace {

// Of the positions those with the largest |log w|, in their order.
std::vector<ComparedPosition> MostDifferent(std::vector<ComparedPosition> positions, size_t count) {
  std::ranges::stable_sort(positions, std::greater<>(), [](const ComparedPosition& at) {
    return at.has_ratio() ? std::abs(at.decided->log_ratio) : -1.0f;
  });
  positions.resize(std::min(count, positions.size()));
  std::ranges::sort(positions, {},
                    [](const ComparedPosition& at) { return std::pair(at.sequence, at.position); });
  return positions;
}

std::string Number(double value, int digits) {
  return std::isnan(value) ? "-" : absl::StrFormat("%.*f", digits, value);
}

// In quotation marks: the text of a token may hold anything.
std::string Quoted(const std::string& text) {
  using Json = nlohmann::json;
  return Json(text).dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false,
                         Json::error_handler_t::replace);
}

std::string CheckLine(const Check& check) {
  const char* outcome = check.fault() ? "FAULT" : "ok";
  if (check.outcome == Check::Outcome::kUntested) {
    return absl::StrFormat("%-6s %-66s %s\n", "-", check.question, check.finding);
  }
  const std::string measured = std::isnan(check.value) ? "-" : absl::StrFormat("%.3g", check.value);
  return absl::StrFormat("%-6s %-66s %-8s (a fault if %s %g)\n", outcome, check.question, measured,
                         check.side == Check::Side::kAbove ? "at least" : "at most", check.limit);
}

// Where the differences are: by position, and of the sequences those with the largest D.
std::string ProfileTable(const Profile& profile) {
  constexpr size_t kMostSequences = 8;
  std::string table = absl::StrFormat("%-20s %9s %10s %10s\n", "where", "positions", "D", "lists");
  const auto add = [&](const std::string& where, const DifferenceSums& differences) {
    absl::StrAppendFormat(&table, "%-20s %9d %10s %10s\n", where, differences.positions,
                          Number(differences.d.mean(), 4), Number(differences.lists.mean(), 4));
  };
  for (const Profile::Row& row : profile.positions) {
    add(absl::StrCat("positions ", row.first, "-", row.last), row.differences);
  }
  std::vector<Profile::Row> sequences = profile.sequences;
  std::erase_if(sequences, [](const Profile::Row& row) { return row.differences.d.count == 0; });
  std::ranges::stable_sort(sequences, std::greater<>(),
                           [](const Profile::Row& row) { return row.differences.d.mean(); });
  for (size_t i = 0; i < std::min(kMostSequences, sequences.size()); ++i) {
    add(absl::StrCat("sequence ", sequences[i].first), sequences[i].differences);
  }
  return absl::StrCat(table, "\n");
}

std::string SummaryTable(const Comparison& comparison) {
  const std::vector<SummaryRow> a_to_b = Summarise(comparison.a_to_b);
  const std::vector<SummaryRow> b_to_a = Summarise(comparison.b_to_a);
  std::string table =
      absl::StrFormat("%-28s %12s %12s\n", "behaviour, then current", "A, B", "B, A");
  for (size_t i = 0; i < a_to_b.size(); ++i) {
    const int digits = a_to_b[i].is_count ? 0 : 6;
    absl::StrAppendFormat(&table, "%-28s %12s %12s\n", a_to_b[i].title,
                          Number(a_to_b[i].value, digits), Number(b_to_a[i].value, digits));
  }
  for (const std::string& note : NotesOnTopK(comparison)) absl::StrAppend(&table, note, "\n");
  return table;
}

std::string PositionTable(const Comparison& comparison, uint32_t count) {
  const std::vector<ComparedPosition>& all = comparison.whole.positions;
  const std::vector<ComparedPosition> shown = MostDifferent(all, count);
  if (shown.empty()) return "";
  std::string table =
      shown.size() == all.size()
          ? "\nall positions, in nats:\n"
          : absl::StrCat("\nthe ", shown.size(), " positions with the largest |log w|, in nats:\n");
  absl::StrAppendFormat(&table, "%8s %8s %10s %10s %10s %8s %8s  %-9s %s\n", "sequence", "position",
                        "log p A", "log p B", "log w", "lists", "a", "decision", "token");
  for (const ComparedPosition& at : shown) {
    const DecidedPosition& decided = *at.decided;
    const float log_prob = at.a->sampled_log_prob;
    absl::StrAppendFormat(&table, "%8d %8d %10s %10s %10s %8.4f %8s  %-9s %s\n", at.sequence,
                          at.position, Number(std::isfinite(log_prob) ? log_prob : std::nan(""), 4),
                          Number(decided.log_ratio + log_prob, 4), Number(decided.log_ratio, 4),
                          at.total_variation, Number(decided.acceptance_probability, 4),
                          DecisionName(decided.decision),
                          Quoted(comparison.TextOf(at.a->sampled_id)));
  }
  return table;
}

}  // namespace

std::string TextReport(const Comparison& comparison, uint32_t positions) {
  return absl::StrCat("A: ", comparison.a_name, "\nB: ", comparison.b_name, "\n",
                      comparison.pair.a.sequences.size(), " sequences, ",
                      comparison.whole.positions.size(), " positions in the same context\n\n",
                      DiagnosisText(comparison.diagnosis), SummaryTable(comparison),
                      PositionTable(comparison, positions));
}

std::string DiagnosisText(const Diagnosis& diagnosis) {
  std::string text = absl::StrCat(absl::StrJoin(diagnosis.verdict, "\n"), "\n\n");
  for (const Check& check : diagnosis.checks) text += CheckLine(check);
  return absl::StrCat(text, "\n", ProfileTable(diagnosis.profile));
}

}  // namespace sis
