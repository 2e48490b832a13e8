// Calls of Redis, alone or as a cluster: which node answers, and what happens if it does not.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
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

struct RedisCommand {
  // The key that decides which node is asked.
  std::string key = {};
  // Must outlive the call.
  std::vector<absl::string_view> arguments = {};
  // Maximum memory of the reply.
  size_t max_reply_bytes = size_t{64} << 20;
};

struct RedisTopology {
  // The ranges of slots: from the last slot to the first slot and the primary. Without a cluster
  // one node serves all slots.
  std::map<int, std::pair<int, RedisNode>> slots = {};
  // The primaries and their replicas.
  std::vector<RedisNode> nodes = {};
};

// Parses the reply to CLUSTER SLOTS of `asked`. Returns Unavailable if it is something else.
absl::StatusOr<RedisTopology> ParseClusterSlots(const RedisReply& reply, const RedisNode& asked);

// Returns the Status for the text of an error reply.
absl::Status RedisError(absl::string_view text);

// Thread-safe. Each thread in a call has connections of its own, which go back to a pool. No call
// lasts longer than its deadline, which is of SteadyNow(). Error replies become a Status.
class RedisNodes {
 public:
  explicit RedisNodes(RedisAddress address) : address_(std::move(address)) {}

  absl::Time Deadline() const;

  // Sends a command to the node of its key. Follows redirections, and tries again while nodes start
  // or fail over. The command must be idempotent, as it may be done twice.
  absl::StatusOr<RedisReply> Call(const RedisCommand& command, absl::Time deadline);
  // Like Call for each command, but first sends all of them in pipelines.
  std::vector<absl::StatusOr<RedisReply>> CallAll(std::span<const RedisCommand> commands,
                                                  absl::Time deadline);

  // Finds the topology again, and returns the primaries.
  absl::StatusOr<std::vector<RedisNode>> Primaries(absl::Time deadline);
  // Sends a command to one node, whatever its key.
  absl::StatusOr<RedisReply> Ask(const RedisNode& node, const RedisCommand& command,
                                 absl::Time deadline);

 private:
  absl::Status Refresh(absl::Time deadline);
  // Sets is_primary to false if the node is a replica outside a cluster.
  absl::StatusOr<RedisTopology> AskTopology(const RedisNode& node, absl::Time deadline,
                                            bool& is_primary);
  // Returns the node that serves the key.
  absl::StatusOr<RedisNode> NodeOf(absl::string_view key, absl::Time deadline);
  // Sends commands in a pipeline. Returns the replies, errors too, or why the connection failed.
  absl::StatusOr<std::vector<RedisReply>> Send(const RedisNode& node,
                                               std::span<const RedisCommand* const> commands,
                                               absl::Time deadline);
  absl::StatusOr<std::unique_ptr<RedisConnection>> Take(const RedisNode& node, absl::Time deadline);

  const RedisAddress address_;
  // Set when a node fails or redirects: the next call finds the topology again.
  std::atomic<bool> stale_ = true;
  Mutex mutex_;
  RedisTopology topology_ ABSL_GUARDED_BY(mutex_);
  std::map<RedisNode, std::vector<std::unique_ptr<RedisConnection>>> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sis
