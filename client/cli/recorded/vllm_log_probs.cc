#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cli/recorded/formats.h"

namespace sis {
namespace {

// The member `id` of a position's dictionary.
absl::StatusOr<RecordedToken> ReadEntry(const std::string& key, const Json& entry,
                                        const JsonPlace& place) {
  RecordedToken token;
  const absl::StatusOr<std::optional<int32_t>> id = ReadIdString(key, place);
  if (!id.ok()) return id.status();
  if (!id->has_value()) return place.Error("is not called by an id");
  token.id = **id;
  const auto value = entry.is_object() ? entry.find("logprob") : entry.end();
  if (entry.is_object() && value == entry.end()) return place.Field("logprob").Error("is missing");
  const absl::StatusOr<float> log_prob =
      entry.is_object() ? ReadLogProb(*value, place.Field("logprob")) : ReadLogProb(entry, place);
  if (!log_prob.ok()) return log_prob.status();
  token.log_prob = *log_prob;
  if (const Json* text = Find(entry, "decoded_token")) {
    if (!text->is_string()) return place.Field("decoded_token").Error("is not a string");
    token.text = text->get<std::string>();
  }
  return token;
}

// An array of as many indices as there are positions, each in [0, limit].
absl::StatusOr<std::vector<size_t>> ReadIndices(const Json& json, const char* name, size_t limit,
                                                const JsonPlace& place) {
  const absl::StatusOr<const Json*> array = FindArray(json, name, place);
  if (!array.ok()) return array.status();
  std::vector<size_t> indices;
  for (size_t i = 0; i < (*array)->size(); ++i) {
    const Json& index = (**array)[i];
    if (!index.is_number_integer() || index < 0 || index > limit) {
      return place.Field(name).Element(i).Error(
          absl::StrCat("is not an integer in [0, ", limit, "]"));
    }
    indices.push_back(index.get<size_t>());
  }
  return indices;
}

}  // namespace

bool IsVllmLogProbs(const Json& json) {
  if (!json.is_array() || json.empty() || !json[0].is_object() || json[0].empty()) return false;
  const auto id = ReadIdString(json[0].begin().key(), JsonPlace(""));
  return !id.ok() || id->has_value();
}

absl::StatusOr<RecordedSequence> ReadVllmLogProbs(const Json& log_probs, const JsonPlace& place,
                                                  const Json* token_ids,
                                                  const JsonPlace& token_ids_place) {
  if (token_ids != nullptr && (!token_ids->is_array() || token_ids->size() != log_probs.size())) {
    return token_ids_place.Error(
        absl::StrCat("is not an array of ", log_probs.size(), " ids, one per position"));
  }
  RecordedSequence sequence;
  for (size_t i = 0; i < log_probs.size(); ++i) {
    if (!log_probs[i].is_object() || log_probs[i].empty()) {
      return place.Element(i).Error("is not an object with a token");
    }
    RecordedPosition position;
    for (const auto& [key, entry] : log_probs[i].items()) {
      absl::StatusOr<RecordedToken> token = ReadEntry(key, entry, place.Element(i).Field(key));
      if (!token.ok()) return token.status();
      position.top.push_back(*std::move(token));
    }
    position.sampled = position.top.front();
    if (token_ids != nullptr) {
      const absl::StatusOr<int32_t> id = ReadId((*token_ids)[i], token_ids_place.Element(i));
      if (!id.ok()) return id.status();
      const auto listed = std::find_if(position.top.begin(), position.top.end(),
                                       [&](const RecordedToken& token) { return token.id == *id; });
      position.sampled =
          listed != position.top.end()
              ? *listed
              : RecordedToken{*id, std::nullopt, -std::numeric_limits<float>::infinity()};
    }
    sequence.positions.push_back(std::move(position));
  }
  return sequence;
}

absl::StatusOr<RecordedSequence> ReadFlatLogProbs(const Json& log_probs, const JsonPlace& place) {
  const absl::StatusOr<const Json*> ids = FindArray(log_probs, "token_ids", place);
  if (!ids.ok()) return ids.status();
  const absl::StatusOr<const Json*> values = FindArray(log_probs, "logprobs", place);
  if (!values.ok()) return values.status();
  const size_t size = (*ids)->size();
  if ((*values)->size() != size) {
    return place.Field("logprobs")
        .Error(absl::StrCat("has ", (*values)->size(), " elements for ", size, " token_ids"));
  }
  const auto starts = ReadIndices(log_probs, "start_indices", size, place);
  if (!starts.ok()) return starts.status();
  const auto ends = ReadIndices(log_probs, "end_indices", size, place);
  if (!ends.ok()) return ends.status();
  if (ends->size() != starts->size()) {
    return place.Field("end_indices")
        .Error(
            absl::StrCat("has ", ends->size(), " elements for ", starts->size(), " start_indices"));
  }
  const Json* texts = Find(log_probs, "decoded_tokens");
  if (texts != nullptr && (!texts->is_array() || texts->size() != size)) {
    return place.Field("decoded_tokens")
        .Error(absl::StrCat("is not an array of ", size, " elements"));
  }
  RecordedSequence sequence;
  for (size_t i = 0; i < starts->size(); ++i) {
    if ((*starts)[i] >= (*ends)[i]) {
      return place.Field("end_indices").Element(i).Error("is not above start_indices");
    }
    RecordedPosition position;
    for (size_t j = (*starts)[i]; j < (*ends)[i]; ++j) {
      RecordedToken token;
      const auto id = ReadId((**ids)[j], place.Field("token_ids").Element(j));
      if (!id.ok()) return id.status();
      token.id = *id;
      const auto value = ReadLogProb((**values)[j], place.Field("logprobs").Element(j));
      if (!value.ok()) return value.status();
      token.log_prob = *value;
      if (texts != nullptr && (*texts)[j].is_string()) token.text = (*texts)[j].get<std::string>();
      position.top.push_back(std::move(token));
    }
    position.sampled = position.top.front();
    sequence.positions.push_back(std::move(position));
  }
  return sequence;
}

}  // namespace sis
