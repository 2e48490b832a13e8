#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/recorded/formats.h"

namespace sis {
namespace {

absl::StatusOr<RecordedPosition> ReadPosition(const Json& json, const JsonPlace& place) {
  RecordedPosition position;
  absl::StatusOr<RecordedToken> sampled = ReadTokenObject(json, place);
  if (!sampled.ok()) return sampled.status();
  position.sampled = *std::move(sampled);
  const char* const name = Find(json, "top_probs") != nullptr ? "top_probs" : "top_logprobs";
  const absl::StatusOr<const Json*> top = FindArray(json, name, place);
  if (!top.ok()) return top.status();
  for (size_t i = 0; i < (*top)->size(); ++i) {
    absl::StatusOr<RecordedToken> token = ReadTokenObject((**top)[i], place.Field(name).Element(i));
    if (!token.ok()) return token.status();
    position.top.push_back(*std::move(token));
  }
  return position;
}

// The entries in their places among `ids`. The server holds a token back until the last one of its
// character, so of several places that fit an entry has the last: they are dealt from the end.
absl::StatusOr<std::vector<RecordedPosition>> Place(std::vector<RecordedPosition> entries,
                                                    const std::vector<int32_t>& ids,
                                                    const JsonPlace& place) {
  std::vector<RecordedPosition> positions;  // in reverse
  size_t left = entries.size();
  for (size_t i = ids.size(); i > 0; --i) {
    if (left > 0 && entries[left - 1].sampled.id == ids[i - 1]) {
      positions.push_back(std::move(entries[--left]));
    } else {
      RecordedPosition position;
      position.sampled = {ids[i - 1], std::nullopt, -std::numeric_limits<float>::infinity()};
      positions.push_back(std::move(position));
    }
  }
  if (left > 0) {
    return place.Field("completion_probabilities")
        .Element(left - 1)
        .Error("is of a token that is not among the tokens left for it");
  }
  std::reverse(positions.begin(), positions.end());
  return positions;
}

}  // namespace

absl::StatusOr<RecordedSequence> ReadLlamaLogProbs(const Json& response, const JsonPlace& place) {
  const auto entries = FindArray(response, "completion_probabilities", place);
  if (!entries.ok()) return entries.status();
  RecordedSequence sequence;
  for (size_t i = 0; i < (*entries)->size(); ++i) {
    absl::StatusOr<RecordedPosition> position =
        ReadPosition((**entries)[i], place.Field("completion_probabilities").Element(i));
    if (!position.ok()) return position.status();
    sequence.positions.push_back(*std::move(position));
  }
  const Json* tokens = Find(response, "tokens");
  // Without "return_tokens" the server gives an empty array.
  if (tokens == nullptr || (tokens->is_array() && tokens->empty())) return sequence;
  if (!tokens->is_array()) return place.Field("tokens").Error("is not an array");
  std::vector<int32_t> ids;
  for (size_t i = 0; i < tokens->size(); ++i) {
    const absl::StatusOr<int32_t> id = ReadId((*tokens)[i], place.Field("tokens").Element(i));
    if (!id.ok()) return id.status();
    ids.push_back(*id);
  }
  absl::StatusOr<std::vector<RecordedPosition>> placed =
      Place(std::move(sequence.positions), ids, place);
  if (!placed.ok()) return placed.status();
  sequence.positions = *std::move(placed);
  return sequence;
}

}  // namespace sis
