#include "client/compare/inspected_tokens.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/compare/inspected_sequence.h"

namespace sis {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

constexpr uint32_t kMostPositions = 1 << 20;

// Where there is no ratio: the files agree on nothing but that a position is there.
RecordedSet Nothing() { return {-1, -kInfinity, -kInfinity}; }

void Sort(RecordedSet& set) {
  set.by_id = set.top;
  std::sort(set.by_id.begin(), set.by_id.end(),
            [](const ListedToken& a, const ListedToken& b) { return a.id < b.id; });
  std::sort(set.top.begin(), set.top.end(), [](const ListedToken& a, const ListedToken& b) {
    return a.log_prob > b.log_prob || (a.log_prob == b.log_prob && a.id < b.id);
  });
}

// What either policy gives the tokens that are recorded at position i.
RecordedSet SetOf(const v1::InspectSequenceResponse& sequence, size_t i,
                  const std::string& log_probs, float sampled_log_prob) {
  RecordedSet set{At<int32_t>(sequence.sampled_ids(), i), sampled_log_prob, sampled_log_prob};
  for (size_t slot = 0; slot < sequence.top_k(); ++slot) {
    const size_t k = i * sequence.top_k() + slot;
    const int32_t id = At<int32_t>(sequence.top_k_ids(), k);
    const float log_prob = At<float>(log_probs, k);
    if (id >= 0 && std::isfinite(log_prob)) set.top.push_back({id, log_prob});
  }
  Sort(set);
  // Beside what was sent of the sampled token, as `given_log_prob`.
  set.sampled_log_prob = set.Listed(set.sampled_id).value_or(sampled_log_prob);
  return set;
}

void AddPosition(const v1::InspectSequenceResponse& sequence, size_t i, RecordedSets& a,
                 RecordedSets& b, std::vector<DecidedPosition>& decided) {
  const char decision = sequence.decisions()[i];
  if (!IsScored(decision)) {
    a.push_back(Nothing());
    b.push_back(Nothing());
    decided.emplace_back();
    return;
  }
  const float log_q = At<float>(sequence.sampled_log_probs(), i);
  const float log_ratio = At<float>(sequence.log_ratios(), i);
  a.push_back(SetOf(sequence, i, sequence.top_k_log_probs(), log_q));
  b.push_back(SetOf(sequence, i, sequence.current_log_probs(), log_q + log_ratio));
  decided.push_back({.decision = static_cast<Decision>(decision),
                     .log_ratio = log_ratio,
                     .acceptance_probability = At<float>(sequence.acceptance_probabilities(), i),
                     .log_envelope = At<float>(sequence.log_envelopes(), i),
                     .residual_mass = At<float>(sequence.residual_masses(), i),
                     .uniform = At<uint32_t>(sequence.uniforms(), i),
                     .staleness = At<int64_t>(sequence.staleness(), i)});
}

}  // namespace

absl::StatusOr<InspectedTokens> ReadInspectedTokens(
    std::span<const v1::InspectSequenceResponse> sequences) {
  InspectedTokens tokens;
  LeftOut missing{"missing", 0, "without a record"}, masked{"masked", 0, "that are masked"},
      not_evaluated{"not_evaluated", 0, "that were not evaluated in this draw"},
      not_kept{"not_kept", 0, "for which there was no room in --inspected_bytes"};
  for (const v1::InspectSequenceResponse& sequence : sequences) {
    if (absl::Status status = CheckArrays(sequence); !status.ok()) return status;
    if (sequence.first_position() > kMostPositions) {
      return absl::InternalError(absl::StrCat("the server's first_position is ",
                                              sequence.first_position(), ", beyond what it keeps"));
    }
    // Positions keep their numbers: before the first one kept there is nothing.
    const size_t before = sequence.first_position();
    RecordedSets& a = tokens.pair.a.sequences.emplace_back(before, Nothing());
    RecordedSets& b = tokens.pair.b.sequences.emplace_back(before, Nothing());
    std::vector<DecidedPosition>& decided = tokens.decisions.sequences.emplace_back(before);
    // Positions without room lie in the cut range, but so may others, which are kept.
    const uint64_t cut_begin = sequence.cut_begin(), cut_end = sequence.cut_end();
    const auto not_there = [&](uint64_t position) -> LeftOut& {
      return cut_begin <= position && position < cut_end ? not_kept : not_evaluated;
    };
    for (size_t position = 0; position < before; ++position) ++not_there(position).positions;
    for (size_t i = 0; i < sequence.decisions().size(); ++i) {
      AddPosition(sequence, i, a, b, decided);
      const char decision = sequence.decisions()[i];
      if (IsScored(decision)) continue;
      ++(decision == v1::MISSING  ? missing
         : decision == v1::MASKED ? masked
                                  : not_there(before + i))
            .positions;
    }
    const uint64_t end = before + sequence.decisions().size();
    not_kept.positions += cut_end - std::min(cut_end, std::max(end, cut_begin));
    const auto top_k = static_cast<int>(sequence.top_k());
    tokens.pair.a.top_k = tokens.pair.b.top_k = std::max(tokens.pair.a.top_k, top_k);
  }
  tokens.pair.by_id = true;
  tokens.left_out = {missing, masked, not_evaluated, not_kept};
  std::erase_if(tokens.left_out, [](const LeftOut& part) { return part.positions == 0; });
  return tokens;
}

}  // namespace sis
