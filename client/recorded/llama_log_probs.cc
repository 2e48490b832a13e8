#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "client/recorded/formats.h"

namespace sis {
namespace {

// The entries in their places among `ids`. The server holds a token back until the last one of its
// character, so of several places that fit an entry has the last: they are dealt from the end.
std::vector<RecordedPosition> Place(std::vector<RecordedPosition> entries,
                                    const std::vector<int32_t>& ids, const JsonPlace& place) {
  std::vector<RecordedPosition> positions;  // in reverse
  size_t left = entries.size();
  for (size_t i = ids.size(); i > 0; --i) {
    if (left > 0 && entries[left - 1].sampled.id == ids[i - 1]) {
      positions.push_back(std::move(entries[--left]));
    } else {
      positions.push_back(
          {{ids[i - 1], std::nullopt, -std::numeric_limits<float>::infinity()}, {}});
    }
  }
  if (left > 0) {
    place.Field("completion_probabilities")
        .Element(left - 1)
        .Fail("is of a token that is not among the tokens left for it");
  }
  std::reverse(positions.begin(), positions.end());
  return positions;
}

}  // namespace

RecordedSequence ReadLlamaLogProbs(const Json& response, const JsonPlace& place) {
  RecordedSequence sequence = ReadObjectLogProbs(response, "completion_probabilities", place);
  const Json* const tokens = Find(response, "tokens");
  // Without "return_tokens" the server gives an empty array.
  if (tokens == nullptr || (tokens->is_array() && tokens->empty())) return sequence;
  if (!tokens->is_array()) place.Field("tokens").Fail("is not an array");
  std::vector<int32_t> ids;
  for (size_t i = 0; i < tokens->size(); ++i) {
    ids.push_back(ReadId((*tokens)[i], place.Field("tokens").Element(i)));
  }
  return {Place(std::move(sequence.positions), ids, place)};
}

}  // namespace sis
