#include "client/cli/compare/quoted_text.h"

#include <nlohmann/json.hpp>

namespace sis {

std::string QuotedText(const std::string& text) {
  using Json = nlohmann::json;
  return Json(text).dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false,
                         Json::error_handler_t::replace);
}

}  // namespace sis
