#include <algorithm>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "client/recorded/formats.h"

namespace sis {
namespace {

// The member `key` of a position's dictionary.
RecordedToken ReadEntry(const std::string& key, const Json& entry, const JsonPlace& place) {
  const std::optional<int32_t> id = ReadIdString(key, place);
  if (!id.has_value()) place.Fail("is not called by an id");
  RecordedToken token{.id = id};
  if (entry.is_object()) {
    const auto value = entry.find("logprob");
    if (value == entry.end()) place.Field("logprob").Fail("is missing");
    token.log_prob = ReadLogProb(*value, place.Field("logprob"));
  } else {
    token.log_prob = ReadLogProb(entry, place);
  }
  if (const Json* const text = Find(entry, "decoded_token")) {
    if (!text->is_string()) place.Field("decoded_token").Fail("is not a string");
    token.text = text->get<std::string>();
  }
  return token;
}

// An array of as many indices as there are positions, each in [0, limit].
std::vector<size_t> ReadIndices(const Json& json, const char* name, size_t limit,
                                const JsonPlace& place) {
  const Json& array = FindArray(json, name, place);
  std::vector<size_t> indices;
  for (size_t i = 0; i < array.size(); ++i) {
    if (!array[i].is_number_integer() || array[i] < 0 || array[i] > limit) {
      place.Field(name).Element(i).Fail(absl::StrCat("is not an integer in [0, ", limit, "]"));
    }
    indices.push_back(array[i].get<size_t>());
  }
  return indices;
}

}  // namespace

bool IsVllmLogProbs(const Json& json) {
  if (!json.is_array() || json.empty() || !json[0].is_object() || json[0].empty()) return false;
  try {
    return ReadIdString(json[0].begin().key(), JsonPlace("")).has_value();
  } catch (const WrongRecording&) {  // an id, but too large a one
    return true;
  }
}

RecordedSequence ReadVllmLogProbs(const Json& log_probs, const JsonPlace& place,
                                  const Json* token_ids, const JsonPlace& token_ids_place) {
  if (token_ids != nullptr && (!token_ids->is_array() || token_ids->size() != log_probs.size())) {
    token_ids_place.Fail(
        absl::StrCat("is not an array of ", log_probs.size(), " ids, one per position"));
  }
  RecordedSequence sequence;
  for (size_t i = 0; i < log_probs.size(); ++i) {
    if (!log_probs[i].is_object() || log_probs[i].empty()) {
      place.Element(i).Fail("is not an object with a token");
    }
    RecordedPosition& position = sequence.positions.emplace_back();
    for (const auto& [key, entry] : log_probs[i].items()) {
      position.top.push_back(ReadEntry(key, entry, place.Element(i).Field(key)));
    }
    position.sampled = position.top.front();
    if (token_ids == nullptr) continue;
    const int32_t id = ReadId((*token_ids)[i], token_ids_place.Element(i));
    const auto listed = std::ranges::find(position.top, id, &RecordedToken::id);
    position.sampled =
        listed != position.top.end()
            ? *listed
            : RecordedToken{id, std::nullopt, -std::numeric_limits<float>::infinity()};
  }
  return sequence;
}

RecordedSequence ReadFlatLogProbs(const Json& log_probs, const JsonPlace& place) {
  const Json& ids = FindArray(log_probs, "token_ids", place);
  const Json& values = FindArray(log_probs, "logprobs", place);
  const size_t size = ids.size();
  if (values.size() != size) {
    place.Field("logprobs")
        .Fail(absl::StrCat("has ", values.size(), " elements for ", size, " token_ids"));
  }
  const std::vector<size_t> starts = ReadIndices(log_probs, "start_indices", size, place);
  const std::vector<size_t> ends = ReadIndices(log_probs, "end_indices", size, place);
  if (ends.size() != starts.size()) {
    place.Field("end_indices")
        .Fail(absl::StrCat("has ", ends.size(), " elements for ", starts.size(), " start_indices"));
  }
  const Json* const texts = Find(log_probs, "decoded_tokens");
  if (texts != nullptr && (!texts->is_array() || texts->size() != size)) {
    place.Field("decoded_tokens").Fail(absl::StrCat("is not an array of ", size, " elements"));
  }
  RecordedSequence sequence;
  for (size_t i = 0; i < starts.size(); ++i) {
    if (starts[i] >= ends[i]) {
      place.Field("end_indices").Element(i).Fail("is not above start_indices");
    }
    RecordedPosition& position = sequence.positions.emplace_back();
    for (size_t j = starts[i]; j < ends[i]; ++j) {
      RecordedToken& token = position.top.emplace_back();
      token.id = ReadId(ids[j], place.Field("token_ids").Element(j));
      token.log_prob = ReadLogProb(values[j], place.Field("logprobs").Element(j));
      if (texts != nullptr && (*texts)[j].is_string()) token.text = (*texts)[j].get<std::string>();
    }
    position.sampled = position.top.front();
  }
  return sequence;
}

}  // namespace sis
