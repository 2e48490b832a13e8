#include "server/admin/query.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace sis {

std::string PercentDecoded(absl::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_code = text[i] == '%' && i + 2 < text.size() &&
                         absl::ascii_isxdigit(text[i + 1]) && absl::ascii_isxdigit(text[i + 2]);
    decoded += is_code ? absl::HexStringToBytes(text.substr(i + 1, 2)) : std::string(1, text[i]);
    if (is_code) i += 2;
  }
  return decoded;
}

std::string QueryValue(absl::string_view query, absl::string_view name) {
  for (const absl::string_view part : absl::StrSplit(query, '&')) {
    const std::pair<absl::string_view, absl::string_view> name_and_value =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    if (name_and_value.first != name) continue;
    return PercentDecoded(absl::StrReplaceAll(name_and_value.second, {{"+", " "}}));
  }
  return "";
}

}  // namespace sis
