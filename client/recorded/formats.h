// The formats that engines write, one function for each. All read one sequence, and throw a
// WrongRecording, which names the place.
#pragma once

#include "client/recorded/json_place.h"
#include "client/recorded/recorded_log_probs.h"

namespace sis {

// The array `name` of "logprobs" of a chat completion of OpenAI, vLLM, SGLang or llama.cpp:
//     {"content": [{"token": ..., "id": ..., "bytes": [...], "logprob": ...,
//                   "top_logprobs": [{"token": ..., "id": ..., "bytes": [...], "logprob": ...},
//                   ...]}, ...]}
RecordedSequence ReadObjectLogProbs(const Json& json, const char* name, const JsonPlace& place);

// "logprobs" of an OpenAI completion; top_logprobs may be null, as a whole or at a position:
//     {"tokens": ["a", ...], "token_logprobs": [-1.5, ...], "top_logprobs": [{"a": -1.5, ...},
//     ...]}
// A text may be "token_id:N".
RecordedSequence ReadCompletionLogProbs(const Json& log_probs, const JsonPlace& place);

// vLLM's list of dictionaries, one per position, whose keys are ids; without `token_ids`, which may
// be null, the first one of each is the sampled token's:
//     [{"5": {"logprob": -1.5, "rank": 1, "decoded_token": "a"}, ...}, ...]
RecordedSequence ReadVllmLogProbs(const Json& log_probs, const JsonPlace& place,
                                  const Json* token_ids, const JsonPlace& token_ids_place);
// Whether an array is one of these.
bool IsVllmLogProbs(const Json& json);

// vLLM's FlatLogprobs, the same in arrays; the sampled token stands first at each position:
//     {"start_indices": [...], "end_indices": [...], "token_ids": [...], "logprobs": [...],
//      "decoded_tokens": [...]}
RecordedSequence ReadFlatLogProbs(const Json& log_probs, const JsonPlace& place);

// SGLang's "meta_info"; output_top_logprobs may be absent, or null at a position:
//     {"output_token_logprobs": [[-1.5, 5, "a"], ...],
//      "output_top_logprobs": [[[-1.5, 5, null], ...], ...]}
RecordedSequence ReadSglangLogProbs(const Json& meta_info, const JsonPlace& place);

// llama.cpp's response, whose lists hold log-probs, or probabilities as "prob" and "top_probs":
//     {"tokens": [5, ...], "completion_probabilities": [{"id": 5, "token": "a", "bytes": [...],
//      "logprob": -1.5, "top_logprobs": [{"id": 5, ...}, ...]}, ...]}
// The server leaves out tokens that end within a character. With `tokens` they get a position that
// says nothing but the id.
RecordedSequence ReadLlamaLogProbs(const Json& response, const JsonPlace& place);

}  // namespace sis
