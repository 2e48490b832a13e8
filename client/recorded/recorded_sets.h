// Two recordings of the same prompts as top-K sets over one vocabulary.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/recorded/recorded_log_probs.h"

namespace sis {

struct ListedToken {
  int32_t id;
  float log_prob;  // nats, finite
};

struct RecordedSet {
  int32_t sampled_id;
  // From the listed token of the same id, if there is one; -inf if the engine gave none.
  float sampled_log_prob;
  // What the file gives besides the list; -inf if nothing.
  float given_log_prob;
  // All listed tokens, most probable first, ties by id, without an appended sampled token. A record
  // of the service holds kMaxTopK of them at most.
  std::vector<ListedToken> top = {};
  // The same by id, for look-ups.
  std::vector<ListedToken> by_id = {};

  // The log-prob of a listed token.
  std::optional<float> Listed(int32_t id) const;
  // The log-prob of a token, if the engine gave one: as a listed or as the sampled token.
  std::optional<float> LogProbOf(int32_t id) const;
};

using RecordedSets = std::vector<RecordedSet>;

struct Recording {
  // One for each prompt.
  std::vector<RecordedSets> sequences;
  // How many most probable tokens the engine was asked for, as far as its lists tell.
  int top_k = 0;
  // What the file says that ids stand for, as it first does; empty if it never does.
  absl::flat_hash_map<int32_t, std::string> texts;
};

struct RecordedPair {
  Recording a;
  Recording b;
  int32_t vocabulary_size = 0;
  // Whether the files' own ids are compared, not their texts.
  bool by_id = false;
};

// Tokens are matched by id if both files give all ids, else by their bytes, which then get ids by
// first appearance. Where different tokens of a list have the same text, the most probable stays.
//
// Engines may list the sampled token besides the most probable ones. It then counts as appended,
// not as one of them, if it is the least probable of its list, and
//  - it stands first, out of order (vLLM puts it there), or
//  - its list is one of the longest of the file, in all of which the sampled token is the least
//    probable, and other lists are shorter by just one.
// An engine may have cut such lists to the length asked for: top_k is then what the lists with an
// appended token hold without it.
//
// A sampled token that contradicts its list is taken out of it: its mass with that token is above
// 1 + 1/64, or it gives the token another log-prob as well.
//
// InvalidArgument names file, sequence and position, if a list gives another token two log-probs or
// its mass is above 1 + 1/64 without the sampled one, if the files have no way in common to tell
// tokens apart, or if one has more sequences than the other.
absl::StatusOr<RecordedPair> PairRecordings(std::span<const RecordedSequence> a,
                                            absl::string_view a_file,
                                            std::span<const RecordedSequence> b,
                                            absl::string_view b_file);

}  // namespace sis
