#include "client/recorded/recorded_sets.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/numerics/exp32.h"
#include "kernels/numerics/log_prob.h"

namespace sis {
namespace {

// The largest vocabulary of a run, and the multiple that sizes of embeddings are usually padded to.
constexpr int32_t kLargestVocabulary = 1 << 24;
constexpr int32_t kVocabularyMultiple = 64;

// One number for one token, in both files.
class TokenIds {
 public:
  explicit TokenIds(bool by_text) : by_text_(by_text) {}

  bool by_text() const { return by_text_; }

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
bool AllTokens(std::span<const RecordedSequence> sequences, Predicate predicate) {
  for (const RecordedSequence& sequence : sequences) {
    for (const RecordedPosition& position : sequence.positions) {
      if (!predicate(position.sampled) ||
          !std::all_of(position.top.begin(), position.top.end(), predicate)) {
        return false;
      }
    }
  }
  return true;
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

absl::StatusOr<List> ReadList(const RecordedPosition& position, const std::string& place,
                              TokenIds& ids) {
  const auto error = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(place, ": ", what));
  };
  List list;
  const int32_t sampled_id = ids.Of(position.sampled);
  for (const RecordedToken& token : position.top) {
    list.tokens.push_back({ids.Of(token), token.log_prob});
  }
  const bool sampled_first = !list.tokens.empty() && list.tokens.front().id == sampled_id;
  // Of equal ids the most probable comes first, and stays.
  std::sort(list.tokens.begin(), list.tokens.end(), [](const ListedToken& a, const ListedToken& b) {
    return a.id < b.id || (a.id == b.id && a.log_prob > b.log_prob);
  });
  for (size_t i = 1; !ids.by_text() && i < list.tokens.size(); ++i) {
    ListedToken &first = list.tokens[i - 1], &second = list.tokens[i];
    if (first.id == second.id && first.log_prob != second.log_prob) {
      // The list's own, and that of the sampled token, which the engine has put there.
      if (first.id == sampled_id && second.log_prob == position.sampled.log_prob) {
        second = first;
        continue;
      }
      if (first.id == sampled_id && first.log_prob == position.sampled.log_prob) {
        first = second;
        continue;
      }
      return error(absl::StrCat("top_logprobs gives token ", first.id, " both ", first.log_prob,
                                " and ", second.log_prob));
    }
  }
  list.tokens.erase(
      std::unique(list.tokens.begin(), list.tokens.end(),
                  [](const ListedToken& a, const ListedToken& b) { return a.id == b.id; }),
      list.tokens.end());
  std::sort(list.tokens.begin(), list.tokens.end(), MoreProbable);
  list.sampled_is_last = list.tokens.size() > 1 && list.tokens.back().id == sampled_id;
  list.sampled_stood_first_out_of_order = sampled_first && list.sampled_is_last;

  double mass = 0, others = 0;
  for (const ListedToken& token : list.tokens) {
    mass += Exp32(token.log_prob);
    if (token.id != sampled_id) others += Exp32(token.log_prob);
  }
  const bool has_sampled = list.tokens.size() > 1 && others < mass;
  if (has_sampled && mass > 1 + kRoundingSlack && others <= 1 + kRoundingSlack) {
    // The engine has put the sampled token into a list that belongs to another position.
    std::erase_if(list.tokens, [&](const ListedToken& token) { return token.id == sampled_id; });
    list.sampled_is_last = list.sampled_stood_first_out_of_order = false;
  } else if (!(mass <= 1 + kRoundingSlack)) {
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

// What a list says of the most probable tokens and of the sampled one.
RecordedSet ReadSet(const RecordedPosition& position, const List& list, bool appended,
                    TokenIds& ids) {
  const float given = position.sampled.log_prob;
  RecordedSet set{ids.Of(position.sampled), given, given};
  for (const ListedToken& token : list.tokens) {
    if (!std::isfinite(token.log_prob)) continue;
    if (token.id == set.sampled_id) set.sampled_log_prob = token.log_prob;
    if (!(appended && token.id == set.sampled_id)) set.top.push_back(token);
  }
  set.by_id = set.top;
  std::sort(set.by_id.begin(), set.by_id.end(),
            [](const ListedToken& a, const ListedToken& b) { return a.id < b.id; });
  return set;
}

void ReadTexts(const RecordedPosition& position, TokenIds& ids, Recording& recording) {
  const auto read = [&](const RecordedToken& token) {
    if (token.text) recording.texts.try_emplace(ids.Of(token), *token.text);
  };
  read(position.sampled);
  std::for_each(position.top.begin(), position.top.end(), read);
}

absl::StatusOr<Recording> ReadRecording(std::span<const RecordedSequence> sequences,
                                        absl::string_view file, TokenIds& ids) {
  std::vector<List> lists;  // of all sequences, one after the other
  size_t longest = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    for (size_t t = 0; t < sequences[i].positions.size(); ++t) {
      absl::StatusOr<List> list = ReadList(
          sequences[i].positions[t], absl::StrCat(file, ": sequence ", i, ": position ", t), ids);
      if (!list.ok()) return list.status();
      longest = std::max(longest, list->tokens.size());
      lists.push_back(*std::move(list));
    }
  }
  const bool longest_have_appended = LongestHaveAppended(lists);

  Recording recording;
  size_t with_appended = 0, without_appended = 0;
  auto list = lists.begin();
  for (const RecordedSequence& sequence : sequences) {
    RecordedSets& sets = recording.sequences.emplace_back();
    for (const RecordedPosition& position : sequence.positions) {
      const bool appended = list->sampled_stood_first_out_of_order ||
                            (longest_have_appended && list->tokens.size() == longest);
      sets.push_back(ReadSet(position, *list++, appended, ids));
      size_t& top_k = appended ? with_appended : without_appended;
      top_k = std::max(top_k, sets.back().top.size());
      ReadTexts(position, ids, recording);
    }
  }
  recording.top_k = static_cast<int>(with_appended > 0 ? with_appended : without_appended);
  return recording;
}

}  // namespace

std::optional<float> RecordedSet::Listed(int32_t id) const {
  const auto found =
      std::lower_bound(by_id.begin(), by_id.end(), id,
                       [](const ListedToken& token, int32_t wanted) { return token.id < wanted; });
  if (found == by_id.end() || found->id != id) return std::nullopt;
  return found->log_prob;
}

std::optional<float> RecordedSet::LogProbOf(int32_t id) const {
  if (const std::optional<float> listed = Listed(id)) return listed;
  if (id == sampled_id && std::isfinite(sampled_log_prob)) return sampled_log_prob;
  return std::nullopt;
}

absl::StatusOr<RecordedPair> PairRecordings(std::span<const RecordedSequence> a,
                                            absl::string_view a_file,
                                            std::span<const RecordedSequence> b,
                                            absl::string_view b_file) {
  if (a.size() != b.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(a_file, " holds ", a.size(), " sequences, ", b_file, " ", b.size(),
                     ": both must hold those of the same prompts, in the same order"));
  }
  const auto has_id = [](const RecordedToken& token) { return token.id.has_value(); };
  const auto has_text = [](const RecordedToken& token) { return token.text.has_value(); };
  const bool by_id = AllTokens(a, has_id) && AllTokens(b, has_id);
  if (!by_id && !(AllTokens(a, has_text) && AllTokens(b, has_text))) {
    return absl::InvalidArgumentError(
        absl::StrCat(a_file, " and ", b_file,
                     ": tokens can't be matched: some have no id, others nothing but an id"));
  }
  TokenIds ids(/*by_text=*/!by_id);
  RecordedPair pair;
  pair.by_id = by_id;
  absl::StatusOr<Recording> recording = ReadRecording(a, a_file, ids);
  if (!recording.ok()) return recording.status();
  pair.a = *std::move(recording);
  recording = ReadRecording(b, b_file, ids);
  if (!recording.ok()) return recording.status();
  pair.b = *std::move(recording);
  pair.vocabulary_size = ids.vocabulary_size();
  return pair;
}

}  // namespace sis
