#include "client/cli/html_page.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/page/page_files.h"

namespace sis {
namespace {

absl::string_view File(absl::string_view name) {
  return std::ranges::find(PageFiles(), name, &PageFile::name)->bytes;
}

// A module's own lines: what it imports stands before it.
std::string Module(absl::string_view name) {
  std::vector<absl::string_view> lines = absl::StrSplit(File(name), '\n');
  std::erase_if(lines, [](absl::string_view line) { return absl::StartsWith(line, "import "); });
  return absl::StrJoin(lines, "\n");
}

}  // namespace

std::string PageJson(const google::protobuf::Message& message) {
  std::string json;
  // Fails at nothing but an Any, or text that is no UTF-8: neither gets into these messages.
  if (!google::protobuf::util::MessageToJsonString(message, &json).ok()) std::abort();
  return json;
}

std::string PageJson(const nlohmann::json& json) {
  return json.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false,
                   nlohmann::json::error_handler_t::replace);
}

std::string EscapedForHtml(absl::string_view text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

std::string Page(const HtmlPage& page) {
  return absl::StrCat(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>",
      EscapedForHtml(page.title), "</title>\n<style>\n", File("page.css"), File("microscope.css"),
      page.style, "</style>\n</head>\n<body>\n<main>\n", page.body,
      "</main>\n<script type=\"application/json\" id=\"data\">",
      // Nothing in a string may end the element.
      absl::StrReplaceAll(page.data, {{"<", "\\u003c"}}), "</script>\n<script>",
      page.charts ? File("chart.js") : "", "</script>\n<script type=\"module\">\n",
      Module("elements.js"), Module("format.js"),
      page.charts ? absl::StrCat(Module("save.js"), Module("charts.js")) : "",
      Module("step_values.js"), Module("microscope.js"),
      "const data = JSON.parse(document.getElementById(\"data\").textContent);\n", page.script,
      "</script>\n</body>\n</html>\n");
}

}  // namespace sis
