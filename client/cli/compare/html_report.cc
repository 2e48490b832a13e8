#include "client/cli/compare/html_report.h"

#include <google/protobuf/util/json_util.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/cli/compare/inspect_response.h"
#include "client/cli/compare/page_files.h"
#include "client/cli/compare/percentile_plot.h"
#include "client/cli/compare/quoted_text.h"
#include "client/page/microscope_source.h"

namespace sis {
namespace {

std::string Number(double value, int digits) {
  return std::isfinite(value) ? absl::StrFormat("%.*f", digits, value) : "–";
}

std::string Cell(const std::string& text, const char* attributes = "") {
  return absl::StrCat("<td", attributes, ">", EscapedForHtml(text), "</td>");
}

std::string Verdict(const Diagnosis& diagnosis) {
  std::string html =
      absl::StrFormat("<section id=\"verdict\" class=\"%s\">\n", diagnosis.fault       ? "fault"
                                                                 : diagnosis.undecided ? "undecided"
                                                                                       : "clear");
  for (const std::string& sentence : diagnosis.verdict) {
    absl::StrAppend(&html, "<p>", EscapedForHtml(sentence), "</p>\n");
  }
  return absl::StrCat(html, "</section>\n");
}

std::string Checks(const Diagnosis& diagnosis) {
  std::string html =
      "<section><h2>Evidence</h2>\n<table id=\"checks\"><thead><tr><th>question</th><th></th>"
      "<th>measured</th><th>a fault if</th><th>what is measured, and why the limit is there</th>"
      "</tr></thead><tbody>\n";
  for (const Check& check : diagnosis.checks) {
    const bool untested = check.outcome == Check::Outcome::kUntested;
    const char* const outcome = untested ? "untested" : check.fault() ? "fault" : "clear";
    const std::string value =
        untested || std::isnan(check.value) ? "–" : absl::StrFormat("%.3g", check.value);
    absl::StrAppend(
        &html, "<tr class=\"", outcome, "\">", Cell(check.question), Cell(outcome),
        Cell(value, " class=\"number\""),
        Cell(absl::StrFormat("%s %g", check.side == Check::Side::kAbove ? "≥" : "≤", check.limit),
             " class=\"number\""),
        Cell(untested ? absl::StrCat("Not tested: ", check.finding, ".")
                      : absl::StrCat(check.statistic, "; ", check.reason, ".")),
        "</tr>\n");
  }
  return absl::StrCat(html, "</tbody></table></section>\n");
}

std::string Summary(const Comparison& comparison) {
  const std::vector<SummaryRow> a_to_b = Summarise(comparison.a_to_b);
  const std::vector<SummaryRow> b_to_a = Summarise(comparison.b_to_a);
  std::string html =
      "<section><h2>What would be accepted</h2>\n<table id=\"summary\"><thead><tr>"
      "<th>behaviour, then current policy</th><th>A, B</th><th>B, A</th></tr></thead><tbody>\n";
  for (size_t i = 0; i < a_to_b.size(); ++i) {
    const int digits = a_to_b[i].is_count ? 0 : 6;
    absl::StrAppend(&html, "<tr>", Cell(a_to_b[i].title),
                    Cell(Number(a_to_b[i].value, digits), " class=\"number\""),
                    Cell(Number(b_to_a[i].value, digits), " class=\"number\""), "</tr>\n");
  }
  absl::StrAppend(&html, "</tbody></table>\n");
  for (const std::string& note : NotesOnTopK(comparison)) {
    absl::StrAppend(&html, "<p>", EscapedForHtml(note), "</p>\n");
  }
  return absl::StrCat(html, "</section>\n");
}

std::string Figure(const PercentilePlot& plot) {
  std::string legend;
  for (size_t i = 0; i < plot.series.size(); ++i) {
    absl::StrAppend(&legend, " <span class=\"series-", i, "\">■ ",
                    EscapedForHtml(plot.series[i].name), "</span>");
  }
  return absl::StrCat("<figure><figcaption>", EscapedForHtml(plot.title), ", ",
                      EscapedForHtml(plot.unit), "<br>", legend, "</figcaption>\n",
                      DrawPercentiles(plot), "</figure>\n");
}

std::string Percentiles(const Comparison& comparison) {
  std::vector<double> deviations, variations, log_probs_a, log_probs_b, a_to_b, b_to_a;
  for (const ComparedPosition& position : comparison.positions) {
    deviations.push_back(std::abs(comparison.a_to_b_at(position).log_ratio));
    variations.push_back(TotalVariation(*position.a, *position.b));
    log_probs_a.push_back(position.a->sampled_log_prob);
    log_probs_b.push_back(position.b->sampled_log_prob);
    a_to_b.push_back(comparison.a_to_b_at(position).acceptance_probability);
    b_to_a.push_back(comparison.b_to_a_at(position).acceptance_probability);
  }
  const std::string all = "all positions";
  return absl::StrCat(
      "<section><h2>Percentiles</h2>\n<div class=\"figures\">\n",
      Figure({"|log w| of the sampled token", "nats", 1e-6, {{all, std::move(deviations)}}}),
      Figure({"Total variation of the lists", "0 to 1", 1e-6, {{all, std::move(variations)}}}),
      Figure({"Acceptance probability",
              "0 to 1",
              0,
              {{"A, then B", std::move(a_to_b)}, {"B, then A", std::move(b_to_a)}}}),
      Figure({"Log-prob of the sampled token",
              "nats",
              0,
              {{"A", std::move(log_probs_a)}, {"B", std::move(log_probs_b)}}}),
      "</div></section>\n");
}

std::string Positions(const Comparison& comparison) {
  std::string html =
      "<section><h2>Positions</h2>\n<p>A as the behaviour policy, B as the current one. A click on "
      "a heading sorts.</p>\n<div class=\"scroll\"><table id=\"positions\"><thead><tr>";
  for (const char* name : {"sequence", "position", "token", "log p A", "log p B", "log w",
                           "total variation", "a", "decision", "a (B, A)"}) {
    absl::StrAppend(&html, "<th><button type=\"button\">", name, "</button></th>");
  }
  absl::StrAppend(&html, "</tr></thead><tbody>\n");
  constexpr char kNumber[] = " class=\"number\"";
  for (const ComparedPosition& position : comparison.positions) {
    const DecidedPosition& decided = comparison.a_to_b_at(position);
    const float log_prob = position.a->sampled_log_prob;
    absl::StrAppend(
        &html, "<tr>", Cell(absl::StrCat(position.sequence), kNumber),
        Cell(absl::StrCat(position.position), kNumber),
        Cell(QuotedText(comparison.TextOf(position.a->sampled_id))),
        Cell(Number(log_prob, 4), kNumber), Cell(Number(decided.log_ratio + log_prob, 4), kNumber),
        Cell(Number(decided.log_ratio, 4), kNumber),
        Cell(Number(TotalVariation(*position.a, *position.b), 4), kNumber),
        Cell(Number(decided.acceptance_probability, 4), kNumber),
        Cell(DecisionName(decided.decision)),
        Cell(Number(comparison.b_to_a_at(position).acceptance_probability, 4), kNumber), "</tr>\n");
  }
  return absl::StrCat(html, "</tbody></table></div></section>\n");
}

// The microscope's input: protobuf's JSON of both directions of each sequence, and texts of tokens.
absl::StatusOr<std::string> MicroscopeData(const Comparison& comparison) {
  std::string sequences;
  for (size_t i = 0; i < comparison.a_to_b.sequences.size(); ++i) {
    const RecordedSets& a = comparison.pair.a.sequences[i];
    const RecordedSets& b = comparison.pair.b.sequences[i];
    std::string both[2];
    const v1::InspectSequenceResponse responses[] = {
        InspectResponse(a, b, comparison.a_to_b.top_k, comparison.a_to_b.sequences[i]),
        InspectResponse(b, a, comparison.b_to_a.top_k, comparison.b_to_a.sequences[i])};
    for (int direction = 0; direction < 2; ++direction) {
      const auto status =
          google::protobuf::util::MessageToJsonString(responses[direction], &both[direction]);
      if (!status.ok()) return absl::InternalError(std::string(status.message()));
    }
    absl::StrAppend(&sequences, i == 0 ? "" : ",", "[", both[0], ",", both[1], "]");
  }
  nlohmann::json texts = nlohmann::json::object();
  for (const Recording* recording : {&comparison.pair.b, &comparison.pair.a}) {
    for (const auto& [id, text] : recording->texts) texts[absl::StrCat(id)] = text;
  }
  using Handler = nlohmann::json::error_handler_t;
  return absl::StrCat("{\"sequences\":[", sequences, "],\"tokenTexts\":",
                      texts.empty() ? "null" : texts.dump(-1, ' ', false, Handler::replace), "}");
}

}  // namespace

absl::StatusOr<std::string> HtmlReport(const Comparison& comparison) {
  const absl::StatusOr<std::string> data = MicroscopeData(comparison);
  if (!data.ok()) return data.status();
  return absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>",
      EscapedForHtml(absl::StrCat(comparison.a_name, " and ", comparison.b_name)),
      "</title>\n<style>", kMicroscopeCss, kCompareCss, "</style></head>\n<body>\n<header><h1>",
      "Two recordings compared</h1>\n<p><b>A</b> ", EscapedForHtml(comparison.a_name),
      "<br><b>B</b> ", EscapedForHtml(comparison.b_name), "</p>\n<p>",
      comparison.pair.a.sequences.size(), " sequences, ", comparison.positions.size(),
      " positions in the same context</p></header>\n", Verdict(comparison.diagnosis),
      Checks(comparison.diagnosis), Summary(comparison), Percentiles(comparison),
      "<section><h2>Under the microscope</h2>\n<p><label>Sequence <select id=\"sequence\"></select>"
      "</label> <label>Direction <select id=\"direction\"><option value=\"0\">A, then B</option>"
      "<option value=\"1\">B, then A</option></select></label></p>\n"
      "<div id=\"microscope\"></div></section>\n",
      Positions(comparison), "<script type=\"application/json\" id=\"data\">",
      // Nothing in a string may end the element.
      absl::StrReplaceAll(*data, {{"<", "\\u003c"}}), "</script>\n<script type=\"module\">\n",
      kMicroscopeJs, kCompareJs, "</script>\n</body></html>\n");
}

}  // namespace sis
