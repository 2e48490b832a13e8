// Any bytes as a tokenizer.json: InvalidArgument, or texts in UTF-8 of tokens that there can be,
// which a file that names them one by one gives again.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "client/page/token_texts.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<sis::TokenTexts> texts = sis::ParseTokenTexts(json);
  if (!texts.ok()) {
    Require(absl::IsInvalidArgument(texts.status()));
    return 0;
  }
  Require(nlohmann::json::parse(json)["model"]["vocab"].is_structured());
  nlohmann::json added = nlohmann::json::array();
  for (const auto& [id, text] : *texts) {
    Require(id >= 0);
    added.push_back({{"id", id}, {"content", text}});
  }
  const nlohmann::json again = {{"model", {{"vocab", nlohmann::json::object()}}},
                                {"added_tokens", added}};
  // It throws where a text is not UTF-8.
  const absl::StatusOr<sis::TokenTexts> same = sis::ParseTokenTexts(again.dump());
  Require(same.ok() && *same == *texts);
  return 0;
}
