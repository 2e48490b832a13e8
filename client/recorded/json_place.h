// Reads the fields that the formats of recordings share, and says where in which file one is wrong:
// by throwing, as nlohmann's parser does.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "client/recorded/recorded_log_probs.h"

namespace sis {

// An object's members in the order of the file: vLLM puts the sampled token first. nlohmann's own
// list looks for each name among all before it, which takes the square of a vocabulary. This one
// keeps repeated names, of which the first is found.
template <typename Name, typename Value, typename Less, typename Allocator>
struct MembersInOrder : nlohmann::ordered_map<Name, Value, Less, Allocator> {
  // What the parser adds a member with.
  Value& operator[](const Name& name) { return this->emplace_back(name, Value{}).second; }
};

using Json = nlohmann::basic_json<MembersInOrder>;

// What is wrong with a file, and where. ParseRecordedLogProbs catches it.
struct WrongRecording {
  std::string message;
};

// Where in which file something stands, for messages.
class JsonPlace {
 public:
  explicit JsonPlace(absl::string_view file) : file_(file) {}

  JsonPlace Field(absl::string_view name) const;
  JsonPlace Element(size_t i) const;
  [[noreturn]] void Fail(absl::string_view what) const;

 private:
  JsonPlace(absl::string_view file, std::string path) : file_(file), path_(std::move(path)) {}

  absl::string_view file_;
  std::string path_;  // empty for the whole file
};

// The member of an object; null if it is absent or JSON's null, or if `json` is no object.
const Json* Find(const Json& json, const char* name);

// The member, which must be an array.
const Json& FindArray(const Json& json, const char* name, const JsonPlace& place);

// An integer in [0, 2^24).
int32_t ReadId(const Json& id, const JsonPlace& place);

// The id in a string of digits, or of vLLM's "token_id:" and digits; nullopt if `text` is none.
std::optional<int32_t> ReadIdString(absl::string_view text, const JsonPlace& place);

// Nats. Minus infinity for null, and for what engines write in its place.
float ReadLogProb(const Json& log_prob, const JsonPlace& place);

// The logarithm of a number in [0, 1].
float ReadProb(const Json& prob, const JsonPlace& place);

// {"id": ..., "token": ..., "bytes": [...], "logprob" or "prob": ...}
RecordedToken ReadTokenObject(const Json& json, const JsonPlace& place);

}  // namespace sis
