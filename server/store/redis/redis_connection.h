// A connection to one node of Redis, with or without TLS.
#pragma once

#include <openssl/bio.h>

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/store/redis/redis_address.h"
#include "server/store/redis/redis_reply.h"

namespace sis {

// Returns the bytes that a client sends for a command.
std::string FormatRedisCommand(const std::vector<absl::string_view>& arguments);

// For one thread at a time. All deadlines are of SteadyNow(); no peer makes a call last longer.
// After an error the connection is useless, as a reply may be under way. The process must ignore
// SIGPIPE.
class RedisConnection {
 public:
  // Connects, verifies the node's certificate, authenticates and selects the database.
  static absl::StatusOr<std::unique_ptr<RedisConnection>> Open(const RedisNode& node,
                                                               const RedisAddress& address,
                                                               absl::Time deadline);

  absl::Status Send(std::string_view bytes, absl::Time deadline);
  // Returns the next reply, which takes at most `max_bytes` of memory.
  absl::StatusOr<RedisReply> Receive(size_t max_bytes, absl::Time deadline);

 private:
  static absl::StatusOr<std::unique_ptr<RedisConnection>> OpenNow(const RedisNode& node,
                                                                  const RedisAddress& address,
                                                                  absl::Time deadline);
  absl::Status StartTls(const RedisNode& node, const RedisAddress& address);
  absl::Status Authenticate(const RedisAddress& address, absl::Time deadline);
  // Calls `step`, which works like BIO_read, until it moves bytes. Returns their number.
  template <typename Step>
  absl::StatusOr<size_t> Move(absl::Time deadline, const Step& step);

  // A socket, with TLS in front of it.
  std::unique_ptr<BIO, decltype(&BIO_free_all)> bio_{nullptr, BIO_free_all};
  absl::string_view name_ = "";  // before the errors of OpenSSL
  RedisReplyReader replies_;
};

}  // namespace sis
