#include "client/cli/recorded_sets.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/numerics/exp32.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/records/validate.h"

namespace sis {
namespace {

// The largest vocabulary of a run, and the multiple that sizes of embeddings are usually padded to.
constexpr int32_t kLargestVocabulary = 1 << 24;
constexpr int32_t kVocabularyMultiple = 64;

// One number for one token, in both files.
class TokenIds {
 public:
  explicit TokenIds(bool by_text) : by_text_(by_text) {}

  int32_t Of(const RecordedToken& token) {
    const int32_t id =
        by_text_ ? interned_.try_emplace(*token.text, static_cast<int32_t>(interned_.size()))
                       .first->second
                 : *token.id;
    largest_ = std::max(largest_, id);
    return id;
  }

  int32_t vocabulary_size() const {
    const int32_t padded =
        (largest_ + kVocabularyMultiple) / kVocabularyMultiple * kVocabularyMultiple;
    return std::min(padded, kLargestVocabulary);
  }

 private:
  const bool by_text_;
  absl::flat_hash_map<std::string, int32_t> interned_;
  int32_t largest_ = 0;
};

template <typename Predicate>
bool AllTokens(std::span<const RecordedPosition> positions, Predicate predicate) {
  return std::all_of(positions.begin(), positions.end(), [&](const RecordedPosition& position) {
    return predicate(position.sampled) &&
           std::all_of(position.top.begin(), position.top.end(), predicate);
  });
}

bool MoreProbable(const ListedToken& a, const ListedToken& b) {
  return a.log_prob > b.log_prob || (a.log_prob == b.log_prob && a.id < b.id);
}

// What a list says, before an appended token is taken out.
struct List {
  std::vector<ListedToken> tokens;  // distinct, most probable first; -inf allowed
  bool sampled_is_last = false;     // the least probable of at least two
  bool sampled_stood_first_out_of_order = false;
};

absl::StatusOr<List> ReadList(const RecordedPosition& position, size_t index,
                              absl::string_view file, TokenIds& ids) {
  const auto error = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": position ", index, ": ", what));
  };
  List list;
  const int32_t sampled_id = ids.Of(position.sampled);
  for (const RecordedToken& token : position.top) {
    const ListedToken listed{ids.Of(token), token.log_prob};
    const auto earlier = std::find_if(list.tokens.begin(), list.tokens.end(),
                                      [&](const ListedToken& t) { return t.id == listed.id; });
    if (earlier == list.tokens.end()) {
      list.tokens.push_back(listed);
    } else if (earlier->log_prob != listed.log_prob) {
      return error(absl::StrCat("top_logprobs gives token ", listed.id, " both ", earlier->log_prob,
                                " and ", listed.log_prob));
    }
  }
  const bool sampled_first = !list.tokens.empty() && list.tokens.front().id == sampled_id;
  std::sort(list.tokens.begin(), list.tokens.end(), MoreProbable);
  list.sampled_is_last = list.tokens.size() > 1 && list.tokens.back().id == sampled_id;
  list.sampled_stood_first_out_of_order = sampled_first && list.sampled_is_last;

  float mass = 0;
  for (const ListedToken& token : list.tokens) mass = mass + Exp32(token.log_prob);
  if (!(mass <= 1 + kRoundingSlack)) {
    return error(absl::StrCat("the probabilities of top_logprobs sum to ", mass));
  }
  return list;
}

// Whether the longest lists hold one token more than the engine was asked for.
bool LongestHaveAppended(std::span<const List> lists) {
  size_t longest = 0;
  for (const List& list : lists) longest = std::max(longest, list.tokens.size());
  bool one_shorter = false;
  for (const List& list : lists) {
    if (list.tokens.size() == longest && !list.sampled_is_last) return false;
    one_shorter |= list.tokens.size() + 1 == longest;
  }
  return one_shorter;
}

absl::StatusOr<Recording> ReadRecording(std::span<const RecordedPosition> positions,
                                        absl::string_view file, TokenIds& ids) {
  std::vector<List> lists;
  size_t longest = 0;
  for (size_t i = 0; i < positions.size(); ++i) {
    absl::StatusOr<List> list = ReadList(positions[i], i, file, ids);
    if (!list.ok()) return list.status();
    longest = std::max(longest, list->tokens.size());
    lists.push_back(*std::move(list));
  }
  const bool longest_have_appended = LongestHaveAppended(lists);

  Recording recording;
  size_t with_appended = 0, without_appended = 0;
  for (size_t i = 0; i < positions.size(); ++i) {
    List& list = lists[i];
    const bool appended = list.sampled_stood_first_out_of_order ||
                          (longest_have_appended && list.tokens.size() == longest);
    RecordedSet set{ids.Of(positions[i].sampled), positions[i].sampled.log_prob, {}};
    for (const ListedToken& token : list.tokens) {
      if (!std::isfinite(token.log_prob)) continue;
      if (token.id == set.sampled_id) set.sampled_log_prob = token.log_prob;
      if (!(appended && token.id == set.sampled_id)) set.top.push_back(token);
    }
    size_t& top_k = appended ? with_appended : without_appended;
    top_k = std::max(top_k, set.top.size());
    recording.positions.push_back(std::move(set));
  }
  recording.top_k = static_cast<int>(with_appended > 0 ? with_appended : without_appended);
  return recording;
}

}  // namespace

std::optional<float> RecordedSet::LogProbOf(int32_t id) const {
  for (const ListedToken& token : top) {
    if (token.id == id) return token.log_prob;
  }
  if (id == sampled_id && std::isfinite(sampled_log_prob)) return sampled_log_prob;
  return std::nullopt;
}

absl::StatusOr<RecordedPair> PairRecordings(std::span<const RecordedPosition> behavior,
                                            absl::string_view behavior_file,
                                            std::span<const RecordedPosition> current,
                                            absl::string_view current_file) {
  const auto has_id = [](const RecordedToken& token) { return token.id.has_value(); };
  const auto has_text = [](const RecordedToken& token) { return token.text.has_value(); };
  const bool by_id = AllTokens(behavior, has_id) && AllTokens(current, has_id);
  if (!by_id && !(AllTokens(behavior, has_text) && AllTokens(current, has_text))) {
    return absl::InvalidArgumentError(
        absl::StrCat(behavior_file, " and ", current_file,
                     ": tokens can't be matched: some have no id, others nothing but an id"));
  }
  TokenIds ids(/*by_text=*/!by_id);
  RecordedPair pair;
  absl::StatusOr<Recording> recording = ReadRecording(behavior, behavior_file, ids);
  if (!recording.ok()) return recording.status();
  pair.behavior = *std::move(recording);
  recording = ReadRecording(current, current_file, ids);
  if (!recording.ok()) return recording.status();
  pair.current = *std::move(recording);
  pair.vocabulary_size = ids.vocabulary_size();
  return pair;
}

}  // namespace sis
