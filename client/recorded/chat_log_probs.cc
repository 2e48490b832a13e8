#include "client/recorded/formats.h"

namespace sis {

RecordedSequence ReadObjectLogProbs(const Json& json, const char* name, const JsonPlace& place) {
  const Json& objects = FindArray(json, name, place);
  RecordedSequence sequence;
  for (size_t i = 0; i < objects.size(); ++i) {
    const JsonPlace object_place = place.Field(name).Element(i);
    RecordedPosition& position = sequence.positions.emplace_back(
        RecordedPosition{ReadTokenObject(objects[i], object_place)});
    const char* const top_name = Find(objects[i], "top_probs") ? "top_probs" : "top_logprobs";
    const Json& top = FindArray(objects[i], top_name, object_place);
    for (size_t j = 0; j < top.size(); ++j) {
      position.top.push_back(ReadTokenObject(top[j], object_place.Field(top_name).Element(j)));
    }
  }
  return sequence;
}

}  // namespace sis
