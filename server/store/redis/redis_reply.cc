#include "server/store/redis/redis_reply.h"

#include <hiredis/read.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace sis {

// By itself hiredis would allocate any size that a reply announces; these functions keep the limit
// of the caller. A null pointer ends the parsing. Debian's versions of hiredis differ in the types
// of counts, and the newer one has functions for kinds that no server sends without being asked.
struct RedisReplyBuilder {
  static RedisReply* Add(const redisReadTask* task, RedisReply::Kind kind, size_t bytes) {
    auto& reader = *static_cast<RedisReplyReader*>(task->privdata);
    if (bytes > reader.max_bytes_ - reader.bytes_) return nullptr;
    reader.bytes_ += bytes;
    RedisReply* const reply = task->parent == nullptr
                                  ? &reader.reply_
                                  : &static_cast<RedisReply*>(task->parent->obj)
                                         ->elements[static_cast<size_t>(task->idx)];
    reply->kind = kind;
    return reply;
  }

  static void* Text(const redisReadTask* task, char* text, size_t size) {
    const bool error = task->type == REDIS_REPLY_ERROR;
    const bool known =
        error || task->type == REDIS_REPLY_STRING || task->type == REDIS_REPLY_STATUS;
    RedisReply* const reply =
        known ? Add(task, error ? RedisReply::Kind::kError : RedisReply::Kind::kText, size)
              : nullptr;
    if (reply != nullptr) reply->text.assign(text, size);
    return reply;
  }

  template <typename Count>
  static void* Array(const redisReadTask* task, Count count) {
    const auto elements = static_cast<size_t>(count);
    auto& reader = *static_cast<RedisReplyReader*>(task->privdata);
    if (task->type != REDIS_REPLY_ARRAY || elements > reader.max_bytes_ / sizeof(RedisReply)) {
      return nullptr;
    }
    RedisReply* const reply = Add(task, RedisReply::Kind::kArray, elements * sizeof(RedisReply));
    if (reply != nullptr) reply->elements.resize(elements);
    return reply;
  }

  static void* Integer(const redisReadTask* task, long long value) {
    RedisReply* const reply = Add(task, RedisReply::Kind::kInteger, 0);
    if (reply != nullptr) reply->integer = value;
    return reply;
  }

  static void* Nil(const redisReadTask* task) { return Add(task, RedisReply::Kind::kNil, 0); }

  template <typename Functions>
  static Functions Make() {
    Functions functions = {};
    functions.createString = Text;
    functions.createArray = Array;
    functions.createInteger = Integer;
    functions.createNil = Nil;
    functions.freeObject = [](void*) {};
    if constexpr (requires { functions.createDouble; }) {
      functions.createDouble = [](const redisReadTask*, double, char*, size_t) -> void* {
        return nullptr;
      };
      functions.createBool = [](const redisReadTask*, int) -> void* { return nullptr; };
    }
    return functions;
  }
};

namespace {

redisReader* CreateReader() {
  static redisReplyObjectFunctions functions = RedisReplyBuilder::Make<redisReplyObjectFunctions>();
  return redisReaderCreateWithFunctions(&functions);
}

}  // namespace

RedisReplyReader::RedisReplyReader() : reader_(CreateReader()) { reader_->privdata = this; }

RedisReplyReader::~RedisReplyReader() { redisReaderFree(reader_); }

void RedisReplyReader::Feed(std::string_view bytes) {
  redisReaderFeed(reader_, bytes.data(), bytes.size());
}

absl::StatusOr<std::optional<RedisReply>> RedisReplyReader::Next(size_t max_bytes) {
  max_bytes_ = max_bytes;
  void* root = nullptr;
  const int result = redisReaderGetReply(reader_, &root);
  if (reader_->err == REDIS_ERR_OOM || reader_->len - reader_->pos > max_bytes) {
    return absl::UnavailableError(
        absl::StrCat("a reply of more than ", max_bytes, " bytes, or of an unknown kind"));
  }
  if (result != REDIS_OK) {
    return absl::UnavailableError(absl::StrCat("no reply of Redis: ", reader_->errstr));
  }
  if (root == nullptr) return std::nullopt;
  bytes_ = 0;
  return std::exchange(reply_, {});
}

}  // namespace sis
