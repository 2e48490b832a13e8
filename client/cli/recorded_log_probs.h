// Log-probs that an inference engine recorded, in the chat-completion format of OpenAI, vLLM and
// llama.cpp:
//
//     {"logprobs": {"content": [{"token": ..., "id": ..., "bytes": [...], "logprob": ...,
//                                "top_logprobs": [{"token": ..., "id": ..., "bytes": [...],
//                                "logprob": ...}, ...]}, ...]}}
//
// or a whole response, which holds the same below choices[0].
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
  // "id", or the number in vLLM's "token_id:N"; in [0, 2^24).
  std::optional<int32_t> id;
  // "bytes", or else the bytes of "token"; none for "token_id:N".
  std::optional<std::string> text;
  // Nats; -inf if the engine gave none.
  float log_prob;
};

struct RecordedPosition {
  RecordedToken sampled;
  // In the order of the file.
  std::vector<RecordedToken> top;
};

// The content array of `json`. InvalidArgument names `file`, position and field of what is wrong.
absl::StatusOr<std::vector<RecordedPosition>> ParseRecordedLogProbs(absl::string_view json,
                                                                    absl::string_view file);

}  // namespace sis
