#include "client/recorded/recorded_log_probs.h"

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/recorded/formats.h"

namespace sis {
namespace {

using Sequences = std::vector<RecordedSequence>;

// The "logprobs" of a completion, which hold one sequence in one of several ways.
RecordedSequence ReadLogProbsOf(const Json& completion, const JsonPlace& place) {
  const JsonPlace log_probs_place = place.Field("logprobs");
  const Json* const log_probs = Find(completion, "logprobs");
  if (log_probs == nullptr) log_probs_place.Fail("is missing");
  if (log_probs->is_array()) {
    return ReadVllmLogProbs(*log_probs, log_probs_place, Find(completion, "token_ids"),
                            place.Field("token_ids"));
  }
  if (log_probs->contains("start_indices")) return ReadFlatLogProbs(*log_probs, log_probs_place);
  if (log_probs->contains("token_logprobs")) {
    return ReadCompletionLogProbs(*log_probs, log_probs_place);
  }
  return ReadObjectLogProbs(*log_probs, "content", log_probs_place);
}

// A response with one sequence.
RecordedSequence ReadSequence(const Json& response, const JsonPlace& place) {
  if (IsVllmLogProbs(response)) return ReadVllmLogProbs(response, place, nullptr, place);
  if (const Json* const meta_info = Find(response, "meta_info")) {
    return ReadSglangLogProbs(*meta_info, place.Field("meta_info"));
  }
  if (Find(response, "output_token_logprobs")) return ReadSglangLogProbs(response, place);
  if (Find(response, "completion_probabilities")) return ReadLlamaLogProbs(response, place);
  if (Find(response, "start_indices")) return ReadFlatLogProbs(response, place);
  return ReadLogProbsOf(response, place);
}

void ReadResponse(const Json& response, const JsonPlace& place, Sequences& sequences) {
  for (const char* const name : {"choices", "outputs"}) {  // OpenAI's name and vLLM's
    const Json* const completions = Find(response, name);
    if (completions == nullptr) continue;
    if (!completions->is_array() || completions->empty()) {
      place.Field(name).Fail("is not an array with a first element");
    }
    for (size_t i = 0; i < completions->size(); ++i) {
      sequences.push_back(ReadLogProbsOf((*completions)[i], place.Field(name).Element(i)));
    }
    return;
  }
  sequences.push_back(ReadSequence(response, place));
}

// JSON lines, if the first line is JSON of its own; else what is wrong with the text as one.
Json ParseLines(absl::string_view text, absl::string_view file, const std::string& error) {
  Json lines = Json::array();
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty()) continue;
    try {
      lines.push_back(Json::parse(line.begin(), line.end()));
    } catch (const Json::exception& in_line) {
      if (lines.empty()) break;
      throw WrongRecording{absl::StrCat(file, ": line ", number, ": not JSON: ", in_line.what())};
    }
  }
  if (lines.empty()) throw WrongRecording{absl::StrCat(file, ": not JSON: ", error)};
  return lines;
}

Json ParseJson(absl::string_view text, absl::string_view file) {
  std::string error;
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::exception& whole) {
    error = whole.what();
  }
  return ParseLines(text, file, error);
}

Sequences ReadFile(const Json& json, absl::string_view file) {
  const JsonPlace place(file);
  Sequences sequences;
  if (!json.is_array() || IsVllmLogProbs(json)) {
    ReadResponse(json, place, sequences);
    return sequences;
  }
  if (json.empty()) place.Fail("is an empty array: there is no response in it");
  for (size_t i = 0; i < json.size(); ++i) ReadResponse(json[i], place.Element(i), sequences);
  return sequences;
}

}  // namespace

absl::StatusOr<std::vector<RecordedSequence>> ParseRecordedLogProbs(absl::string_view text,
                                                                    absl::string_view file) {
  try {
    return ReadFile(ParseJson(text, file), file);
  } catch (const WrongRecording& wrong) {
    return absl::InvalidArgumentError(wrong.message);
  }
}

}  // namespace sis
