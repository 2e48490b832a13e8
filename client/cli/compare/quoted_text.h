// Texts of tokens, which may hold anything, so that a report can show them.
#pragma once

#include <string>

namespace sis {

// In quotation marks; what can't be seen as JSON writes it, and what is no UTF-8 as U+FFFD.
std::string QuotedText(const std::string& text);

}  // namespace sis
