#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/recorded/formats.h"

namespace sis {
namespace {

// A token that is called by its text.
RecordedToken ReadToken(const std::string& text, const Json& log_prob, const JsonPlace& place) {
  RecordedToken token{.log_prob = ReadLogProb(log_prob, place)};
  if (absl::StartsWith(text, "token_id:")) token.id = ReadIdString(text, place);
  if (!token.id) token.text = text;
  return token;
}

}  // namespace

RecordedSequence ReadCompletionLogProbs(const Json& log_probs, const JsonPlace& place) {
  const Json& tokens = FindArray(log_probs, "tokens", place);
  const Json& values = FindArray(log_probs, "token_logprobs", place);
  const Json* const tops = Find(log_probs, "top_logprobs");
  const JsonPlace values_place = place.Field("token_logprobs");
  const JsonPlace tops_place = place.Field("top_logprobs");
  const auto check_size = [&](const Json& array, const JsonPlace& array_place) {
    if (array.size() == tokens.size()) return;
    array_place.Fail(
        absl::StrCat("has ", array.size(), " elements for ", tokens.size(), " tokens"));
  };
  check_size(values, values_place);
  if (tops != nullptr && !tops->is_array()) tops_place.Fail("is not an array");
  if (tops != nullptr) check_size(*tops, tops_place);
  RecordedSequence sequence;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!tokens[i].is_string()) place.Field("tokens").Element(i).Fail("is not a string");
    RecordedPosition& position = sequence.positions.emplace_back(RecordedPosition{
        ReadToken(tokens[i].get<std::string>(), values[i], values_place.Element(i))});
    if (tops == nullptr || (*tops)[i].is_null()) continue;
    if (!(*tops)[i].is_object()) tops_place.Element(i).Fail("is not an object");
    for (const auto& [name, log_prob] : (*tops)[i].items()) {
      position.top.push_back(ReadToken(name, log_prob, tops_place.Element(i).Field(name)));
    }
  }
  return sequence;
}

}  // namespace sis
