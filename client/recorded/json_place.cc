#include "client/recorded/json_place.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kernels/numerics/log_prob.h"

namespace sis {
namespace {

// Engines clamp minus infinity to this, as JSON can't hold it.
constexpr double kClampedLogProb = -9999.0;
// The largest vocabulary of a run.
constexpr int64_t kIdLimit = int64_t{1} << 24;
constexpr absl::string_view kTokenIdPrefix = "token_id:";

std::string ReadBytes(const Json& bytes, const JsonPlace& place) {
  if (!bytes.is_array()) place.Fail("is not an array of bytes");
  std::string text;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (!bytes[i].is_number_integer() || bytes[i] < 0 || bytes[i] > 255) {
      place.Element(i).Fail("is not an integer in [0, 255]");
    }
    text.push_back(static_cast<char>(bytes[i].get<int>()));
  }
  return text;
}

// The member of either name, which must be there.
float ReadLogProbOf(const Json& json, const JsonPlace& place) {
  if (const auto prob = json.find("prob"); prob != json.end()) {
    return ReadProb(*prob, place.Field("prob"));
  }
  const auto log_prob = json.find("logprob");
  if (log_prob == json.end()) place.Field("logprob").Fail("is missing");
  return ReadLogProb(*log_prob, place.Field("logprob"));
}

}  // namespace

JsonPlace JsonPlace::Field(absl::string_view name) const {
  return JsonPlace(file_, absl::StrCat(path_, path_.empty() ? "" : ".", name));
}

JsonPlace JsonPlace::Element(size_t i) const {
  return JsonPlace(file_, absl::StrCat(path_, "[", i, "]"));
}

void JsonPlace::Fail(absl::string_view what) const {
  throw WrongRecording{absl::StrCat(file_, ": ", path_, path_.empty() ? "" : ": ", what)};
}

const Json* Find(const Json& json, const char* name) {
  if (!json.is_object()) return nullptr;
  const auto member = json.find(name);
  return member == json.end() || member->is_null() ? nullptr : &*member;
}

const Json& FindArray(const Json& json, const char* name, const JsonPlace& place) {
  const Json* const array = Find(json, name);
  if (array == nullptr) place.Field(name).Fail("is missing");
  if (!array->is_array()) place.Field(name).Fail("is not an array");
  return *array;
}

int32_t ReadId(const Json& id, const JsonPlace& place) {
  if (!id.is_number_integer()) place.Fail("is not an integer");
  // Compares well with integers of any size and sign.
  if (id >= 0 && id < kIdLimit) return id.get<int32_t>();
  place.Fail(absl::StrCat(id.dump(), " is not in [0, 2^24)"));
}

std::optional<int32_t> ReadIdString(absl::string_view text, const JsonPlace& place) {
  absl::ConsumePrefix(&text, kTokenIdPrefix);
  int64_t id;
  if (text.empty() || !std::all_of(text.begin(), text.end(), absl::ascii_isdigit) ||
      !absl::SimpleAtoi(text, &id)) {
    return std::nullopt;
  }
  if (id >= kIdLimit) place.Fail(absl::StrCat(id, " is not in [0, 2^24)"));
  return static_cast<int32_t>(id);
}

float ReadLogProb(const Json& log_prob, const JsonPlace& place) {
  if (log_prob.is_null()) return -std::numeric_limits<float>::infinity();
  if (!log_prob.is_number()) place.Fail("is not a number");
  const double value = log_prob.get<double>();
  if (!(value <= kRoundingSlack)) {
    place.Fail(absl::StrCat(value, " is not a log-prob of at most 1/64"));
  }
  if (value <= kClampedLogProb) return -std::numeric_limits<float>::infinity();
  return static_cast<float>(value);
}

float ReadProb(const Json& prob, const JsonPlace& place) {
  if (prob.is_null()) return -std::numeric_limits<float>::infinity();
  if (!prob.is_number()) place.Fail("is not a number");
  const double value = prob.get<double>();
  if (!(value >= 0 && value <= 1)) place.Fail(absl::StrCat(value, " is not in [0, 1]"));
  return static_cast<float>(std::log(value));
}

RecordedToken ReadTokenObject(const Json& json, const JsonPlace& place) {
  if (!json.is_object()) place.Fail("is not an object");
  RecordedToken token{.log_prob = ReadLogProbOf(json, place)};
  if (const Json* const text = Find(json, "token")) {
    if (!text->is_string()) place.Field("token").Fail("is not a string");
    token.text = text->get<std::string>();
    if (absl::StartsWith(*token.text, kTokenIdPrefix)) {
      token.id = ReadIdString(*token.text, place.Field("token"));
    }
  }
  const bool is_id_string = token.id.has_value();
  if (is_id_string) token.text.reset();
  if (const Json* const id = Find(json, "id")) token.id = ReadId(*id, place.Field("id"));
  if (const Json* const bytes = Find(json, "bytes"); bytes != nullptr && !is_id_string) {
    token.text = ReadBytes(*bytes, place.Field("bytes"));
  }
  if (!token.id && !token.text) place.Fail("has none of id, token and bytes");
  return token;
}

}  // namespace sis
