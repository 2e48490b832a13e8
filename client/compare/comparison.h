// Two recordings side by side: what reports are made of.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/compare/compared_positions.h"
#include "client/compare/decisions.h"
#include "client/compare/diagnosis.h"
#include "client/recorded/recorded_sets.h"

namespace sis {

struct Comparison {
  std::string a_name, b_name;
  RecordedPair pair;
  DecideOptions options;
  // A as the behaviour policy and B as the current one, and the other way round. Their sequences
  // are as long as the common prefixes.
  Decisions a_to_b, b_to_a;
  Part whole;  // of `pair` and `a_to_b`
  Diagnosis diagnosis;

  const DecidedPosition& b_to_a_at(const ComparedPosition& position) const {
    return b_to_a.sequences[position.sequence][position.position];
  }
  // What a file says that a token stands for; "#ID" if neither says it.
  std::string TextOf(int32_t id) const;
};

// Fails as PairRecordings and DecideAll do.
absl::StatusOr<Comparison> Compare(std::span<const RecordedSequence> a, const std::string& a_name,
                                   std::span<const RecordedSequence> b, const std::string& b_name,
                                   const DecideOptions& options);

// "accepted", "rejected", "outside" or "unscored".
const char* DecisionName(Decision decision);

// Sentences about the K of the decisions, where it is not what was asked for, or not all that is
// listed because no record holds so many.
std::vector<std::string> NotesOnTopK(const Comparison& comparison);

// What comes of the decisions of one direction.
struct SummaryRow {
  const char* field;  // in JSON
  const char* title;  // in a table
  double value;       // NaN for a mean over nothing
  bool is_count;
};
std::vector<SummaryRow> Summarise(const Decisions& decisions);

}  // namespace sis
