#include "client/cli/show_html.h"

#include <google/protobuf/util/json_util.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/cli/inspected_sequence.h"
#include "client/page/microscope_source.h"

namespace sis {
namespace {

using Json = nlohmann::json;

absl::StatusOr<Json> ToJson(const google::protobuf::Message& message) {
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(message, &text);
  if (!status.ok()) return absl::InternalError(std::string(status.message()));
  return Json::parse(text);
}

// Nothing in it ends the script that it stands in. What is not UTF-8 becomes U+FFFD.
std::string ForScript(const Json& json) {
  return absl::StrReplaceAll(
      json.dump(-1, ' ', false, Json::error_handler_t::replace),
      {{"<", "\\u003c"}, {"\xE2\x80\xA8", "\\u2028"}, {"\xE2\x80\xA9", "\\u2029"}});
}

std::string ForHtml(std::string_view text) {
  return absl::StrReplaceAll(absl::string_view(text.data(), text.size()),
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

std::set<int32_t> TokensOf(const InspectedRun& run) {
  std::set<int32_t> tokens;
  if (run.overview.has_value()) {
    for (const auto& token : run.overview->tokens()) tokens.insert(token.token_id());
    for (const auto& found : run.overview->deviations()) tokens.insert(found.token_id());
  }
  for (const auto& [name, response] : run.sequences) {
    const InspectedSequence sequence(response);
    tokens.insert(sequence.sampled_ids.begin(), sequence.sampled_ids.end());
    tokens.insert(sequence.top_k_ids.begin(), sequence.top_k_ids.end());
  }
  return tokens;
}

// Shows the overview, and below it the sequence that was chosen.
constexpr char kShow[] = R"js(
const nameOf = sequence => JSON.stringify([sequence.id, Number(sequence.attempt || 0)]);
const sequences = new Map(data.sequences.map(kept => [nameOf(kept.sequence), kept]));
function open(sequence, position = null) {
  const kept = sequences.get(nameOf(sequence));
  if (!kept) return;
  const attempt = Number(sequence.attempt || 0);
  const title = sequence.id + (attempt ? ` (attempt ${attempt})` : "");
  const element = document.getElementById("sequence");
  renderSequence(element, kept.response, {tokenTexts: data.tokenTexts, title, position});
  if (data.overview) element.scrollIntoView();
}
if (data.overview) {
  renderRun(document.getElementById("run"), data.overview,
      {tokenTexts: data.tokenTexts, onOpen: open});
} else if (data.sequences.length) {
  open(data.sequences[0].sequence);
}
)js";

}  // namespace

absl::StatusOr<std::string> RunAsHtml(const InspectedRun& run, const TokenTexts& texts) {
  Json data = {{"overview", nullptr}, {"sequences", Json::array()}, {"tokenTexts", nullptr}};
  if (run.overview.has_value()) {
    absl::StatusOr<Json> overview = ToJson(*run.overview);
    if (!overview.ok()) return overview.status();
    data["overview"] = *std::move(overview);
  }
  for (const auto& [name, response] : run.sequences) {
    absl::StatusOr<Json> ref = ToJson(name), json = ToJson(response);
    if (!ref.ok()) return ref.status();
    if (!json.ok()) return json.status();
    data["sequences"].push_back({{"sequence", *std::move(ref)}, {"response", *std::move(json)}});
  }
  if (!texts.empty()) {
    Json needed = Json::object();
    for (const int32_t token : TokensOf(run)) {
      if (const auto text = texts.find(token); text != texts.end()) {
        needed[absl::StrCat(token)] = text->second;
      }
    }
    data["tokenTexts"] = std::move(needed);
  }
  const std::string title = ForHtml(run.run_id);
  return absl::StrCat(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>",
      title, "</title>\n<style>\n", kMicroscopeCss,
      "body { margin: 16px; }\n#sequence { margin-top: 24px; }\n"
      "h1 { font: 600 20px system-ui, sans-serif; }\n</style>\n</head>\n<body>\n<h1>",
      title,
      "</h1>\n<div id=\"run\"></div>\n<div id=\"sequence\"></div>\n<script type=\"module\">\n",
      kMicroscopeJs, "\nconst data = ", ForScript(data), ";\n", kShow,
      "</script>\n</body>\n</html>\n");
}

}  // namespace sis
