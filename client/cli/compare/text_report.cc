#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/compare/reports.h"

namespace sis {
namespace {

// The indices of the positions to show.
std::vector<size_t> MostDifferent(const Comparison& comparison, size_t count) {
  std::vector<size_t> indices(comparison.positions.size());
  std::iota(indices.begin(), indices.end(), 0);
  const auto deviation = [&](size_t i) {
    const float log_ratio = comparison.a_to_b_at(comparison.positions[i]).log_ratio;
    return std::isnan(log_ratio) ? -1.0f : std::abs(log_ratio);
  };
  std::stable_sort(indices.begin(), indices.end(),
                   [&](size_t i, size_t j) { return deviation(i) > deviation(j); });
  indices.resize(std::min(count, indices.size()));
  std::sort(indices.begin(), indices.end());
  return indices;
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

std::string ProfileLine(const std::string& what, const Profile::Row& row) {
  return absl::StrFormat("%-20s %9d %10s %10s\n", what, row.positions, Number(row.d, 4),
                         Number(row.lists, 4));
}

// Where the differences are: by position, and of the sequences those with the largest D.
std::string ProfileTable(const Profile& profile) {
  constexpr size_t kMostSequences = 8;
  std::string table = absl::StrFormat("%-20s %9s %10s %10s\n", "where", "positions", "D", "lists");
  for (const Profile::Row& row : profile.positions) {
    table += ProfileLine(absl::StrCat("positions ", row.first, "-", row.last), row);
  }
  std::vector<Profile::Row> sequences = profile.sequences;
  std::erase_if(sequences, [](const Profile::Row& row) { return std::isnan(row.d); });
  std::stable_sort(sequences.begin(), sequences.end(),
                   [](const Profile::Row& a, const Profile::Row& b) { return a.d > b.d; });
  for (size_t i = 0; i < std::min(kMostSequences, sequences.size()); ++i) {
    table += ProfileLine(absl::StrCat("sequence ", sequences[i].first), sequences[i]);
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
  const std::vector<size_t> shown = MostDifferent(comparison, count);
  if (shown.empty()) return "";
  std::string table =
      shown.size() == comparison.positions.size()
          ? "\nall positions, in nats:\n"
          : absl::StrCat("\nthe ", shown.size(), " positions with the largest |log w|, in nats:\n");
  absl::StrAppendFormat(&table, "%8s %8s %10s %10s %10s %8s %8s  %-9s %s\n", "sequence", "position",
                        "log p A", "log p B", "log w", "lists", "a", "decision", "token");
  for (const size_t i : shown) {
    const ComparedPosition& position = comparison.positions[i];
    const DecidedPosition& decided = comparison.a_to_b_at(position);
    const float log_prob = position.a->sampled_log_prob;
    absl::StrAppendFormat(
        &table, "%8d %8d %10s %10s %10s %8.4f %8s  %-9s %s\n", position.sequence, position.position,
        Number(std::isfinite(log_prob) ? log_prob : std::nan(""), 4),
        Number(decided.log_ratio + log_prob, 4), Number(decided.log_ratio, 4),
        TotalVariation(*position.a, *position.b), Number(decided.acceptance_probability, 4),
        DecisionName(decided.decision), Quoted(comparison.TextOf(position.a->sampled_id)));
  }
  return table;
}

}  // namespace

std::string TextReport(const Comparison& comparison, uint32_t positions) {
  return absl::StrCat("A: ", comparison.a_name, "\nB: ", comparison.b_name, "\n",
                      comparison.pair.a.sequences.size(), " sequences, ",
                      comparison.positions.size(), " positions in the same context\n\n",
                      DiagnosisText(comparison.diagnosis), SummaryTable(comparison),
                      PositionTable(comparison, positions));
}

std::string DiagnosisText(const Diagnosis& diagnosis) {
  std::string text = absl::StrCat(absl::StrJoin(diagnosis.verdict, "\n"), "\n\n");
  for (const Check& check : diagnosis.checks) text += CheckLine(check);
  return absl::StrCat(text, "\n", ProfileTable(diagnosis.profile));
}

}  // namespace sis
