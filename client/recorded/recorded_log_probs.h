// Log-probs that inference engines and trainers recorded, in any of the formats of formats.h.
//
// A log-prob that is null, or at most -9999 (what engines write for minus infinity), says nothing:
// such a token counts as not listed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sis {

struct RecordedToken {
  std::optional<int32_t> id = {};  // in [0, 2^24)
  // What the token stands for, as the file has it; none if the file gives nothing but the id.
  std::optional<std::string> text = {};
  // Nats; -inf if the engine gave none.
  float log_prob = 0;
};

struct RecordedPosition {
  RecordedToken sampled;
  // In the order of the file; empty if it lists nothing at this position.
  std::vector<RecordedToken> top = {};
};

// What was sampled after one prompt.
struct RecordedSequence {
  std::vector<RecordedPosition> positions;
};

// The sequences of a file, which is JSON or JSON lines: one response, several, or an array of them,
// each with one sequence or more. InvalidArgument names `file`, field, position and value of what
// is wrong.
absl::StatusOr<std::vector<RecordedSequence>> ParseRecordedLogProbs(absl::string_view text,
                                                                    absl::string_view file);

}  // namespace sis
