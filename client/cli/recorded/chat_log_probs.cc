#include <utility>

#include "client/cli/recorded/formats.h"

namespace sis {
namespace {

absl::StatusOr<RecordedPosition> ReadPosition(const Json& json, const JsonPlace& place) {
  RecordedPosition position;
  absl::StatusOr<RecordedToken> sampled = ReadTokenObject(json, place);
  if (!sampled.ok()) return sampled.status();
  position.sampled = *std::move(sampled);
  const absl::StatusOr<const Json*> top = FindArray(json, "top_logprobs", place);
  if (!top.ok()) return top.status();
  for (size_t i = 0; i < (*top)->size(); ++i) {
    absl::StatusOr<RecordedToken> token =
        ReadTokenObject((**top)[i], place.Field("top_logprobs").Element(i));
    if (!token.ok()) return token.status();
    position.top.push_back(*std::move(token));
  }
  return position;
}

}  // namespace

absl::StatusOr<RecordedSequence> ReadChatLogProbs(const Json& log_probs, const JsonPlace& place) {
  const absl::StatusOr<const Json*> content = FindArray(log_probs, "content", place);
  if (!content.ok()) return content.status();
  RecordedSequence sequence;
  for (size_t i = 0; i < (*content)->size(); ++i) {
    absl::StatusOr<RecordedPosition> position =
        ReadPosition((**content)[i], place.Field("content").Element(i));
    if (!position.ok()) return position.status();
    sequence.positions.push_back(*std::move(position));
  }
  return sequence;
}

}  // namespace sis
