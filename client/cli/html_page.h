// Pages in one file that need no other and no network: the look and the modules of the server's
// page, with what they show.
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/strings/string_view.h"

namespace sis {

struct HtmlPage {
  std::string title;
  std::string body;  // HTML
  std::string data;  // JSON, which the script knows as `data`
  absl::string_view style = {};
  // It stands behind the microscope, and behind the charts if there are any, in one module.
  absl::string_view script = {};
  bool charts = false;
};

std::string Page(const HtmlPage& page);

// For `data`: messages as the page reads them, with names in lowerCamelCase and without default
// values; and other values, in which U+FFFD stands for what is no UTF-8.
std::string PageJson(const google::protobuf::Message& message);
std::string PageJson(const nlohmann::json& json);

// Characters that HTML gives a meaning, escaped.
std::string EscapedForHtml(absl::string_view text);

}  // namespace sis
