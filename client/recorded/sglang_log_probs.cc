#include "absl/strings/str_cat.h"
#include "client/recorded/formats.h"

namespace sis {
namespace {

// [log-prob, id, text or null]
RecordedToken ReadTriple(const Json& triple, const JsonPlace& place) {
  if (!triple.is_array() || triple.size() < 2) {
    place.Fail("is not an array of log-prob, id and text");
  }
  RecordedToken token{.log_prob = ReadLogProb(triple[0], place.Element(0))};
  token.id = ReadId(triple[1], place.Element(1));
  if (triple.size() > 2 && triple[2].is_string()) token.text = triple[2].get<std::string>();
  return token;
}

}  // namespace

RecordedSequence ReadSglangLogProbs(const Json& meta_info, const JsonPlace& place) {
  const Json& sampled = FindArray(meta_info, "output_token_logprobs", place);
  const JsonPlace sampled_place = place.Field("output_token_logprobs");
  const Json* const tops = Find(meta_info, "output_top_logprobs");
  const JsonPlace tops_place = place.Field("output_top_logprobs");
  if (tops != nullptr && (!tops->is_array() || tops->size() != sampled.size())) {
    tops_place.Fail(
        absl::StrCat("is not an array of ", sampled.size(), " lists, one per sampled token"));
  }
  RecordedSequence sequence;
  for (size_t i = 0; i < sampled.size(); ++i) {
    RecordedPosition& position = sequence.positions.emplace_back(
        RecordedPosition{ReadTriple(sampled[i], sampled_place.Element(i))});
    if (tops == nullptr || (*tops)[i].is_null()) continue;
    const Json& top = (*tops)[i];
    if (!top.is_array()) tops_place.Element(i).Fail("is not an array");
    for (size_t j = 0; j < top.size(); ++j) {
      position.top.push_back(ReadTriple(top[j], tops_place.Element(i).Element(j)));
    }
  }
  return sequence;
}

}  // namespace sis
