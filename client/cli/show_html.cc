#include "client/cli/show_html.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/html_page.h"
#include "client/cli/show_source.h"
#include "client/compare/inspected_sequence.h"

namespace sis {
namespace {

std::set<int32_t> TokensOf(const InspectedRun& run) {
  std::set<int32_t> tokens;
  if (run.overview.has_value()) {
    for (const auto& token : run.overview->tokens()) tokens.insert(token.token_id());
    for (const auto& found : run.overview->deviations()) tokens.insert(found.token_id());
  }
  for (const auto& [name, response] : run.sequences) {
    for (const std::string& ids : {response.sampled_ids(), response.top_k_ids()}) {
      for (size_t i = 0; i < ids.size() / sizeof(int32_t); ++i) tokens.insert(At<int32_t>(ids, i));
    }
  }
  return tokens;
}

}  // namespace

std::string RunAsHtml(const InspectedRun& run, const TokenTexts& texts) {
  const std::string overview = run.overview.has_value() ? PageJson(*run.overview) : "null";
  std::vector<std::string> sequences;
  for (const auto& [name, response] : run.sequences) {
    sequences.push_back(
        absl::StrCat("{\"sequence\":", PageJson(name), ",\"response\":", PageJson(response), "}"));
  }
  nlohmann::json needed;
  for (const int32_t token : TokensOf(run)) {
    const auto text = texts.find(token);
    if (text != texts.end()) needed[absl::StrCat(token)] = text->second;
  }
  return Page({.title = run.run_id,
               .body = absl::StrCat("<h1>", EscapedForHtml(run.run_id),
                                    "</h1>\n<div id=\"run\"></div>\n<div id=\"sequence\"></div>\n"),
               .data = absl::StrCat("{\"overview\":", overview, ",\"sequences\":[",
                                    absl::StrJoin(sequences, ","),
                                    "],\"tokenTexts\":", PageJson(needed), "}"),
               .script = kShowJs});
}

}  // namespace sis
