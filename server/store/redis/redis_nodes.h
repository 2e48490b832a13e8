// Calls of Redis, alone or as a cluster: which node answers, and what happens if it does not.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/store/redis/redis_address.h"
#include "server/store/redis/redis_connection.h"
#include "server/store/redis/redis_reply.h"
#include "server/threads/mutex.h"

namespace sis {

inline constexpr int kRedisSlots = 16384;

// Returns the slot of a key, as the specification of Redis Cluster defines it. The key must contain
// no braces.
int RedisSlot(absl::string_view key);

// All strings must outlive the call.
struct RedisCommand {
  // The key that decides which node is asked.
  absl::string_view key = {};
  // The node to ask instead.
  std::optional<RedisNode> node = {};
  std::vector<absl::string_view> arguments = {};
  // Maximum memory of the reply.
  size_t max_reply_bytes = size_t{64} << 20;
};

// The primaries by the last slot of each range that they serve. Without a cluster one node serves
// all slots.
using RedisPrimaries = std::map<int64_t, RedisNode>;

// Parses the reply to CLUSTER SLOTS of `asked`. Returns Unavailable if it is something else.
absl::StatusOr<RedisPrimaries> ParseClusterSlots(const RedisReply& reply, const RedisNode& asked);

// Thread-safe. Each thread in a call has connections of its own, which go back to a pool. No call
// lasts longer than the timeout of the address. Error replies become a Status.
class RedisNodes {
 public:
  explicit RedisNodes(RedisAddress address) : address_(std::move(address)) {}

  // Sends a command to its node. Follows redirections, and tries again while nodes start or fail
  // over. The command must be idempotent, as it may be done twice.
  absl::StatusOr<RedisReply> Call(const RedisCommand& command) {
    return std::move(CallAll({&command, 1}).front());
  }
  // Like Call for each command, in pipelines.
  std::vector<absl::StatusOr<RedisReply>> CallAll(std::span<const RedisCommand> commands);

  // Finds the primaries again.
  absl::StatusOr<std::set<RedisNode>> Primaries();

 private:
  // A command that has no result yet.
  struct Pending {
    const RedisCommand* command;
    absl::StatusOr<RedisReply>* result = nullptr;
    // The node that another node named. With `asking`, it needs ASKING before the command.
    std::optional<RedisNode> node = {};
    bool asking = false;
  };

  absl::Time Deadline() const;
  absl::Status Refresh(absl::Time deadline);
  absl::StatusOr<RedisPrimaries> AskPrimaries(const RedisNode& node, absl::Time deadline);
  // Returns the node that serves the key, if one is known.
  std::optional<RedisNode> NodeOf(absl::string_view key) const;
  // Sends commands in a pipeline. Returns their replies, errors too, or why the connection failed.
  std::vector<absl::StatusOr<RedisReply>> Send(const RedisNode& node,
                                               std::span<const Pending> commands,
                                               absl::Time deadline);
  // Sets the result of a command. Returns false if the command must be sent again.
  bool Finish(const RedisNode& node, absl::StatusOr<RedisReply> reply, Pending& pending);
  absl::StatusOr<std::unique_ptr<RedisConnection>> Take(const RedisNode& node, absl::Time deadline);

  const RedisAddress address_;
  // Set when a node fails or redirects: the next call finds the primaries again.
  std::atomic<bool> stale_ = true;
  mutable Mutex mutex_;
  RedisPrimaries primaries_ ABSL_GUARDED_BY(mutex_);
  std::map<RedisNode, std::vector<std::unique_ptr<RedisConnection>>> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sis
