#include "client/cli/reason_text.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_replace.h"

namespace sis {

std::string ReasonText(v1::MissingReason reason) {
  return absl::AsciiStrToLower(absl::StrReplaceAll(v1::MissingReason_Name(reason), {{"_", " "}}));
}

}  // namespace sis
