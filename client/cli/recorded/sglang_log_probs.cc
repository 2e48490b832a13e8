#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/recorded/formats.h"

namespace sis {
namespace {

// [log-prob, id, text or null]
absl::StatusOr<RecordedToken> ReadTriple(const Json& triple, const JsonPlace& place) {
  if (!triple.is_array() || triple.size() < 2) {
    return place.Error("is not an array of log-prob, id and text");
  }
  RecordedToken token;
  const absl::StatusOr<float> log_prob = ReadLogProb(triple[0], place.Element(0));
  if (!log_prob.ok()) return log_prob.status();
  token.log_prob = *log_prob;
  const absl::StatusOr<int32_t> id = ReadId(triple[1], place.Element(1));
  if (!id.ok()) return id.status();
  token.id = *id;
  if (triple.size() > 2 && triple[2].is_string()) token.text = triple[2].get<std::string>();
  return token;
}

}  // namespace

absl::StatusOr<RecordedSequence> ReadSglangLogProbs(const Json& meta_info, const JsonPlace& place) {
  const absl::StatusOr<const Json*> sampled = FindArray(meta_info, "output_token_logprobs", place);
  if (!sampled.ok()) return sampled.status();
  const JsonPlace sampled_place = place.Field("output_token_logprobs");
  const Json* tops = Find(meta_info, "output_top_logprobs");
  const JsonPlace tops_place = place.Field("output_top_logprobs");
  if (tops != nullptr && (!tops->is_array() || tops->size() != (*sampled)->size())) {
    return tops_place.Error(
        absl::StrCat("is not an array of ", (*sampled)->size(), " lists, one per sampled token"));
  }
  RecordedSequence sequence;
  for (size_t i = 0; i < (*sampled)->size(); ++i) {
    absl::StatusOr<RecordedToken> token = ReadTriple((**sampled)[i], sampled_place.Element(i));
    if (!token.ok()) return token.status();
    RecordedPosition position{*std::move(token), {}};
    if (tops != nullptr && !(*tops)[i].is_null()) {
      const Json& top = (*tops)[i];
      if (!top.is_array()) return tops_place.Element(i).Error("is not an array");
      for (size_t j = 0; j < top.size(); ++j) {
        token = ReadTriple(top[j], tops_place.Element(i).Element(j));
        if (!token.ok()) return token.status();
        position.top.push_back(*std::move(token));
      }
    }
    sequence.positions.push_back(std::move(position));
  }
  return sequence;
}

}  // namespace sis
