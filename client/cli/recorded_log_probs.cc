#include "client/cli/recorded_log_probs.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/numerics/log_prob.h"
#include "kernels/records/validate.h"

namespace sis {
namespace {

using Json = nlohmann::json;

// Engines clamp minus infinity to this, as JSON can't hold it.
constexpr double kClampedLogProb = -9999.0;
// The largest vocabulary of a run.
constexpr int64_t kIdLimit = int64_t{1} << 24;
constexpr absl::string_view kTokenIdPrefix = "token_id:";

// Where in which file something stands, for messages.
class JsonPath {
 public:
  JsonPath(absl::string_view file, std::string path) : file_(file), path_(std::move(path)) {}

  JsonPath Field(absl::string_view name) const {
    return JsonPath(file_, absl::StrCat(path_, ".", name));
  }
  JsonPath Element(size_t i) const { return JsonPath(file_, absl::StrCat(path_, "[", i, "]")); }

  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(file_, ": ", path_, ": ", what));
  }

 private:
  absl::string_view file_;
  std::string path_;
};

// The member of an object; null if it is absent or JSON's null, or if `json` is no object.
const Json* Find(const Json& json, const char* name) {
  if (!json.is_object()) return nullptr;
  const auto member = json.find(name);
  return member == json.end() || member->is_null() ? nullptr : &*member;
}

// `id` must be an integer.
absl::StatusOr<int32_t> ReadId(const Json& id, const JsonPath& place) {
  // Compares well with integers of any size and sign.
  if (id >= 0 && id < kIdLimit) return id.get<int32_t>();
  return place.Error(absl::StrCat(id.dump(), " is not in [0, 2^24)"));
}

absl::Status ReadBytes(const Json& bytes, const JsonPath& place, std::string& text) {
  if (!bytes.is_array()) return place.Error("is not an array of bytes");
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (!bytes[i].is_number_integer() || bytes[i] < 0 || bytes[i] > 255) {
      return place.Element(i).Error("is not an integer in [0, 255]");
    }
    text.push_back(static_cast<char>(bytes[i].get<int>()));
  }
  return absl::OkStatus();
}

absl::StatusOr<float> ReadLogProb(const Json& json, const JsonPath& place) {
  const auto member = json.find("logprob");
  if (member == json.end()) return place.Error("is missing");
  if (member->is_null()) return -std::numeric_limits<float>::infinity();
  if (!member->is_number()) return place.Error("is not a number");
  const double value = member->get<double>();
  if (!(value <= kRoundingSlack)) {
    return place.Error(absl::StrCat(value, " is not a log-prob of at most 1/64"));
  }
  if (value <= kClampedLogProb) return -std::numeric_limits<float>::infinity();
  return static_cast<float>(value);
}

absl::StatusOr<RecordedToken> ReadToken(const Json& json, const JsonPath& place) {
  if (!json.is_object()) return place.Error("is not an object");
  RecordedToken token;
  const absl::StatusOr<float> log_prob = ReadLogProb(json, place.Field("logprob"));
  if (!log_prob.ok()) return log_prob.status();
  token.log_prob = *log_prob;

  bool is_id_string = false;
  if (const Json* text = Find(json, "token")) {
    if (!text->is_string()) return place.Field("token").Error("is not a string");
    token.text = text->get<std::string>();
    absl::string_view number = *token.text;
    int64_t id;
    is_id_string = absl::ConsumePrefix(&number, kTokenIdPrefix) && absl::SimpleAtoi(number, &id);
    if (is_id_string) {
      const absl::StatusOr<int32_t> checked = ReadId(id, place.Field("token"));
      if (!checked.ok()) return checked.status();
      token.id = *checked;
      token.text.reset();
    }
  }
  if (const Json* id = Find(json, "id")) {
    if (!id->is_number_integer()) return place.Field("id").Error("is not an integer");
    const absl::StatusOr<int32_t> checked = ReadId(*id, place.Field("id"));
    if (!checked.ok()) return checked.status();
    token.id = *checked;
  }
  if (const Json* bytes = Find(json, "bytes"); bytes != nullptr && !is_id_string) {
    const absl::Status status = ReadBytes(*bytes, place.Field("bytes"), token.text.emplace());
    if (!status.ok()) return status;
  }
  if (!token.id && !token.text) return place.Error("has none of id, token and bytes");
  return token;
}

absl::StatusOr<RecordedPosition> ReadPosition(const Json& json, const JsonPath& place) {
  RecordedPosition position;
  absl::StatusOr<RecordedToken> sampled = ReadToken(json, place);
  if (!sampled.ok()) return sampled.status();
  position.sampled = *std::move(sampled);
  const JsonPath top_place = place.Field("top_logprobs");
  const Json* top = Find(json, "top_logprobs");
  if (top == nullptr) return top_place.Error("is missing");
  if (!top->is_array()) return top_place.Error("is not an array");
  for (size_t i = 0; i < top->size(); ++i) {
    absl::StatusOr<RecordedToken> token = ReadToken((*top)[i], top_place.Element(i));
    if (!token.ok()) return token.status();
    position.top.push_back(*std::move(token));
  }
  return position;
}

// Where the content array is, in either form.
absl::StatusOr<std::pair<const Json*, JsonPath>> FindContent(const Json& json,
                                                             absl::string_view file) {
  const Json* holder = &json;
  std::string path;
  if (const Json* choices = Find(json, "choices")) {
    if (!choices->is_array() || choices->empty()) {
      return JsonPath(file, "choices").Error("is not an array with a first element");
    }
    holder = &(*choices)[0];
    path = "choices[0].";
  }
  absl::StrAppend(&path, "logprobs");
  const Json* log_probs = Find(*holder, "logprobs");
  if (log_probs == nullptr) return JsonPath(file, path).Error("is missing");
  const JsonPath place = JsonPath(file, path).Field("content");
  const Json* content = Find(*log_probs, "content");
  if (content == nullptr) return place.Error("is missing");
  if (!content->is_array()) return place.Error("is not an array");
  return std::pair(content, place);
}

}  // namespace

absl::StatusOr<std::vector<RecordedPosition>> ParseRecordedLogProbs(absl::string_view json,
                                                                    absl::string_view file) {
  Json root;
  try {
    root = Json::parse(json.begin(), json.end());
  } catch (const Json::exception& error) {  // the only way to learn where the text is wrong
    return absl::InvalidArgumentError(absl::StrCat(file, ": not JSON: ", error.what()));
  }
  const auto content = FindContent(root, file);
  if (!content.ok()) return content.status();
  std::vector<RecordedPosition> positions;
  for (size_t i = 0; i < content->first->size(); ++i) {
    absl::StatusOr<RecordedPosition> position =
        ReadPosition((*content->first)[i], content->second.Element(i));
    if (!position.ok()) return position.status();
    positions.push_back(*std::move(position));
  }
  return positions;
}

}  // namespace sis
