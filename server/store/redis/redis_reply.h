// Replies of Redis in the protocol RESP2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sis {

struct RedisReply {
  // The letters of the protocol, but kText is a status ('+') or a string, and kNil a '$' or '*'
  // without a length.
  enum class Kind : char { kNil = '_', kText = '$', kInteger = ':', kArray = '*', kError = '-' };
  Kind kind = Kind::kNil;
  int64_t integer = 0;
  // The text of kText and kError.
  std::string text = {};
  std::vector<RedisReply> elements = {};

  bool is_array() const { return kind == Kind::kArray; }
  bool is_integer() const { return kind == Kind::kInteger; }
  bool is_error() const { return kind == Kind::kError; }
};

// Returns the first word of an error.
inline absl::string_view RedisErrorCode(absl::string_view text) {
  return text.substr(0, text.find(' '));
}
// Returns the Status for the text of an error.
absl::Status RedisError(absl::string_view text);

// Reads a stream of replies. After an error the stream is useless.
class RedisReplyReader {
 public:
  // Appends received bytes, at least one.
  using Receive = absl::FunctionRef<absl::Status(std::string& bytes)>;

  // Returns the next reply. Returns the errors of `receive`, or Unavailable if the bytes are no
  // reply, or if the reply takes more than `max_bytes` of memory.
  absl::StatusOr<RedisReply> Next(size_t max_bytes, Receive receive);

 private:
  // `max_bytes` becomes what the rest of the reply may take.
  absl::Status Read(Receive receive, int depth, size_t& max_bytes, RedisReply& reply);

  std::string bytes_;
  size_t begin_ = 0;  // of the bytes that were not read yet
};

}  // namespace sis
