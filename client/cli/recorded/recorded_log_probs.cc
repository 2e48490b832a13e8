#include "client/cli/recorded/recorded_log_probs.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/recorded/formats.h"

namespace sis {
namespace {

using Sequences = std::vector<RecordedSequence>;

absl::Status Append(absl::StatusOr<RecordedSequence> sequence, Sequences& sequences) {
  if (!sequence.ok()) return sequence.status();
  sequences.push_back(*std::move(sequence));
  return absl::OkStatus();
}

// The "logprobs" of a completion, which hold one sequence in one of several ways.
absl::Status ReadLogProbsOf(const Json& completion, const JsonPlace& place, Sequences& sequences) {
  const JsonPlace log_probs_place = place.Field("logprobs");
  const Json* log_probs = Find(completion, "logprobs");
  if (log_probs == nullptr) return log_probs_place.Error("is missing");
  if (log_probs->is_array()) {
    return Append(ReadVllmLogProbs(*log_probs, log_probs_place, Find(completion, "token_ids"),
                                   place.Field("token_ids")),
                  sequences);
  }
  if (log_probs->contains("start_indices")) {
    return Append(ReadFlatLogProbs(*log_probs, log_probs_place), sequences);
  }
  if (log_probs->contains("token_logprobs")) {
    return Append(ReadCompletionLogProbs(*log_probs, log_probs_place), sequences);
  }
  return Append(ReadChatLogProbs(*log_probs, log_probs_place), sequences);
}

// A response with several completions, below `name`.
absl::Status ReadCompletions(const Json& response, const char* name, const JsonPlace& place,
                             Sequences& sequences) {
  const Json* completions = Find(response, name);
  if (!completions->is_array() || completions->empty()) {
    return place.Field(name).Error("is not an array with a first element");
  }
  for (size_t i = 0; i < completions->size(); ++i) {
    absl::Status status =
        ReadLogProbsOf((*completions)[i], place.Field(name).Element(i), sequences);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ReadResponse(const Json& response, const JsonPlace& place, Sequences& sequences) {
  if (IsVllmLogProbs(response)) {
    return Append(ReadVllmLogProbs(response, place, nullptr, place), sequences);
  }
  for (const char* name : {"choices", "outputs"}) {  // OpenAI's name and vLLM's
    if (Find(response, name) != nullptr) return ReadCompletions(response, name, place, sequences);
  }
  if (const Json* meta_info = Find(response, "meta_info")) {
    return Append(ReadSglangLogProbs(*meta_info, place.Field("meta_info")), sequences);
  }
  if (Find(response, "output_token_logprobs") != nullptr) {
    return Append(ReadSglangLogProbs(response, place), sequences);
  }
  if (Find(response, "completion_probabilities") != nullptr) {
    return Append(ReadLlamaLogProbs(response, place), sequences);
  }
  if (Find(response, "start_indices") != nullptr) {
    return Append(ReadFlatLogProbs(response, place), sequences);
  }
  return ReadLogProbsOf(response, place, sequences);
}

// JSON lines, if the first line is JSON of its own; else what is wrong with the text as one.
absl::StatusOr<Json> ParseLines(absl::string_view text, absl::string_view file,
                                const std::string& error) {
  Json lines = Json::array();
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty()) continue;
    try {
      lines.push_back(Json::parse(line.begin(), line.end()));
    } catch (const Json::exception& in_line) {  // the only way to learn where the text is wrong
      return absl::InvalidArgumentError(
          lines.empty() ? absl::StrCat(file, ": not JSON: ", error)
                        : absl::StrCat(file, ": line ", number, ": not JSON: ", in_line.what()));
    }
  }
  if (lines.empty()) return absl::InvalidArgumentError(absl::StrCat(file, ": not JSON: ", error));
  return lines;
}

absl::StatusOr<Json> ParseJson(absl::string_view text, absl::string_view file) {
  std::string error;
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::exception& whole) {
    error = whole.what();
  }
  return ParseLines(text, file, error);
}

}  // namespace

absl::StatusOr<std::vector<RecordedSequence>> ParseRecordedLogProbs(absl::string_view text,
                                                                    absl::string_view file) {
  const absl::StatusOr<Json> json = ParseJson(text, file);
  if (!json.ok()) return json.status();
  const JsonPlace place(file);
  Sequences sequences;
  if (!json->is_array() || IsVllmLogProbs(*json)) {
    if (absl::Status status = ReadResponse(*json, place, sequences); !status.ok()) return status;
    return sequences;
  }
  if (json->empty()) return place.Error("is an empty array: there is no response in it");
  for (size_t i = 0; i < json->size(); ++i) {
    absl::Status status = ReadResponse((*json)[i], place.Element(i), sequences);
    if (!status.ok()) return status;
  }
  return sequences;
}

}  // namespace sis
