#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/recorded/formats.h"

namespace sis {
namespace {

// A token that is called by its text.
absl::StatusOr<RecordedToken> ReadToken(const std::string& text, const Json& log_prob,
                                        const JsonPlace& place) {
  RecordedToken token;
  const absl::StatusOr<float> value = ReadLogProb(log_prob, place);
  if (!value.ok()) return value.status();
  token.log_prob = *value;
  if (absl::StartsWith(text, "token_id:")) {
    const auto id = ReadIdString(text, place);
    if (!id.ok()) return id.status();
    token.id = *id;
  }
  if (!token.id) token.text = text;
  return token;
}

}  // namespace

absl::StatusOr<RecordedSequence> ReadCompletionLogProbs(const Json& log_probs,
                                                        const JsonPlace& place) {
  const absl::StatusOr<const Json*> tokens = FindArray(log_probs, "tokens", place);
  if (!tokens.ok()) return tokens.status();
  const absl::StatusOr<const Json*> values = FindArray(log_probs, "token_logprobs", place);
  if (!values.ok()) return values.status();
  const size_t length = (*tokens)->size();
  if ((*values)->size() != length) {
    return place.Field("token_logprobs")
        .Error(absl::StrCat("has ", (*values)->size(), " elements for ", length, " tokens"));
  }
  const Json* tops = Find(log_probs, "top_logprobs");
  const JsonPlace tops_place = place.Field("top_logprobs");
  if (tops != nullptr && !tops->is_array()) return tops_place.Error("is not an array");
  if (tops != nullptr && tops->size() != length) {
    return tops_place.Error(
        absl::StrCat("has ", tops->size(), " elements for ", length, " tokens"));
  }
  RecordedSequence sequence;
  for (size_t i = 0; i < length; ++i) {
    const Json& text = (**tokens)[i];
    if (!text.is_string()) return place.Field("tokens").Element(i).Error("is not a string");
    absl::StatusOr<RecordedToken> sampled =
        ReadToken(text.get<std::string>(), (**values)[i], place.Field("token_logprobs").Element(i));
    if (!sampled.ok()) return sampled.status();
    RecordedPosition position{*std::move(sampled), {}};
    if (tops != nullptr && !(*tops)[i].is_null()) {
      const Json& top = (*tops)[i];
      if (!top.is_object()) return tops_place.Element(i).Error("is not an object");
      for (const auto& [name, log_prob] : top.items()) {
        absl::StatusOr<RecordedToken> token =
            ReadToken(name, log_prob, tops_place.Element(i).Field(name));
        if (!token.ok()) return token.status();
        position.top.push_back(*std::move(token));
      }
    }
    sequence.positions.push_back(std::move(position));
  }
  return sequence;
}

}  // namespace sis
