#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/compare/page_files.h"
#include "client/cli/compare/reports.h"
#include "client/cli/html_page.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {
namespace {

std::string Verdict(const Diagnosis& diagnosis) {
  const char* const kind = diagnosis.fault ? "fault" : diagnosis.undecided ? "undecided" : "clear";
  std::string html = absl::StrCat("<section id=\"verdict\" class=\"", kind, "\">\n");
  for (const std::string& sentence : diagnosis.verdict) {
    absl::StrAppend(&html, "<p>", EscapedForHtml(sentence), "</p>\n");
  }
  return absl::StrCat(html, "</section>\n");
}

// The rest of the page compare.js fills in.
constexpr char kSections[] = R"html(
<h2>Evidence</h2>
<div class="scroll" id="checks"></div>
<h2>What would be accepted</h2>
<div class="scroll" id="summary"></div>
<div id="notes"></div>
<h2>Percentiles</h2>
<div class="panels" id="percentiles"></div>
<h2>Under the microscope</h2>
<p><label>Sequence <select id="sequence"></select></label>
<label>Direction <select id="direction"><option value="0">A, then B</option>
<option value="1">B, then A</option></select></label></p>
<div class="inspected" id="microscope"></div>
<h2>Positions</h2>
<p>A as the behaviour policy, B as the current one. A click on a heading sorts.</p>
<div class="scroll" id="positions"></div>
)html";

// The bytes of an array in the API are little-endian, as this machine is.
template <typename Value>
void Append(Value value, std::string& array) {
  array.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// A compared sequence as the service would answer InspectSequence, in one direction: `behavior`
// sampled, `current` is another policy, `decided` are the decisions of the common prefix.
v1::InspectSequenceResponse InspectResponse(const RecordedSets& behavior,
                                            const RecordedSets& current, int top_k,
                                            const std::vector<DecidedPosition>& decided) {
  v1::InspectSequenceResponse response;
  response.set_top_k(static_cast<uint32_t>(top_k));
  for (size_t t = 0; t < decided.size(); ++t) {
    Append(static_cast<uint8_t>(decided[t].decision), *response.mutable_decisions());
    Append(uint8_t{0}, *response.mutable_missing_reasons());
    Append(behavior[t].sampled_id, *response.mutable_sampled_ids());
    Append(behavior[t].sampled_log_prob, *response.mutable_sampled_log_probs());
    Append(decided[t].log_ratio, *response.mutable_log_ratios());
    Append(decided[t].acceptance_probability, *response.mutable_acceptance_probabilities());
    Append(decided[t].log_envelope, *response.mutable_log_envelopes());
    Append(decided[t].residual_mass, *response.mutable_residual_masses());
    Append(decided[t].uniform, *response.mutable_uniforms());
    Append(int64_t{0}, *response.mutable_staleness());
    const std::vector<ListedToken>& top = behavior[t].top;
    for (size_t slot = 0; slot < static_cast<size_t>(top_k); ++slot) {
      const bool used = slot < top.size();
      const auto current_log_prob = used ? current[t].LogProbOf(top[slot].id) : std::nullopt;
      Append(used ? top[slot].id : -1, *response.mutable_top_k_ids());
      Append(used ? top[slot].log_prob : -INFINITY, *response.mutable_top_k_log_probs());
      Append(current_log_prob.value_or(NAN), *response.mutable_current_log_probs());
    }
  }
  return response;
}

// What the page is made of: the report for programs, the summary with its titles, and for the
// microscope both directions of each sequence, and texts of tokens.
std::string PageData(const Comparison& comparison) {
  std::string sequences;
  for (size_t i = 0; i < comparison.a_to_b.sequences.size(); ++i) {
    const RecordedSets& a = comparison.pair.a.sequences[i];
    const RecordedSets& b = comparison.pair.b.sequences[i];
    const Decisions &there = comparison.a_to_b, &back = comparison.b_to_a;
    absl::StrAppend(&sequences, i == 0 ? "" : ",", "[",
                    PageJson(InspectResponse(a, b, there.top_k, there.sequences[i])), ",",
                    PageJson(InspectResponse(b, a, back.top_k, back.sequences[i])), "]");
  }
  nlohmann::json texts, summary = nlohmann::json::array();
  for (const Recording* recording : {&comparison.pair.b, &comparison.pair.a}) {
    for (const auto& [id, text] : recording->texts) texts[absl::StrCat(id)] = text;
  }
  const std::vector<SummaryRow> a_to_b = Summarise(comparison.a_to_b);
  const std::vector<SummaryRow> b_to_a = Summarise(comparison.b_to_a);
  for (size_t i = 0; i < a_to_b.size(); ++i) {
    summary.push_back({{"title", a_to_b[i].title},
                       {"digits", a_to_b[i].is_count ? 0 : 6},
                       {"a_to_b", a_to_b[i].value},
                       {"b_to_a", b_to_a[i].value}});
  }
  return absl::StrCat("{\"report\":", JsonReport(comparison), ",\"summary\":", summary.dump(),
                      ",\"sequences\":[", sequences, "],\"tokenTexts\":", PageJson(texts), "}");
}

}  // namespace

std::string HtmlReport(const Comparison& comparison) {
  return Page(
      {.title = absl::StrCat(comparison.a_name, " and ", comparison.b_name),
       .body = absl::StrCat(
           "<h1>Two recordings compared</h1>\n<p><b>A</b> ", EscapedForHtml(comparison.a_name),
           "<br><b>B</b> ", EscapedForHtml(comparison.b_name), "</p>\n<p>",
           comparison.pair.a.sequences.size(), " sequences, ", comparison.whole.positions.size(),
           " positions in the same context</p>\n", Verdict(comparison.diagnosis), kSections),
       .data = PageData(comparison),
       .style = kCompareCss,
       .script = kCompareJs,
       .charts = true});
}

}  // namespace sis
