// Replies of Redis, as hiredis parses them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

struct redisReader;

namespace sis {

struct RedisReply {
  // kText is a status or a string.
  enum class Kind : uint8_t { kNil, kText, kInteger, kArray, kError };
  Kind kind = Kind::kNil;
  int64_t integer = 0;
  // The text of kText and kError.
  std::string text = {};
  std::vector<RedisReply> elements = {};

  bool is_text() const { return kind == Kind::kText; }
  bool is_array() const { return kind == Kind::kArray; }
  bool is_integer() const { return kind == Kind::kInteger; }
  bool is_error() const { return kind == Kind::kError; }
};

// Parses a stream of replies. After an error the stream is useless.
class RedisReplyReader {
 public:
  RedisReplyReader();
  ~RedisReplyReader();
  RedisReplyReader(const RedisReplyReader&) = delete;
  RedisReplyReader& operator=(const RedisReplyReader&) = delete;

  // Appends received bytes.
  void Feed(std::string_view bytes);
  // Returns the next reply, or nullopt if it is not complete. Returns Unavailable if the bytes are
  // no reply, or if the reply takes more than `max_bytes` of memory.
  absl::StatusOr<std::optional<RedisReply>> Next(size_t max_bytes);

 private:
  // Called by hiredis for each element of a reply.
  friend struct RedisReplyBuilder;

  redisReader* const reader_;
  // Memory of the reply under construction, in bytes; includes bytes that hiredis keeps.
  size_t bytes_ = 0;
  size_t max_bytes_ = 0;
  RedisReply reply_;
};

}  // namespace sis
