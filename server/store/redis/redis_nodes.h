// Calls of Redis, alone or as a cluster: which node answers, and what happens if it does not.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
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

// Returns the slot of a key, as the specification of Redis Cluster defines it.
int RedisSlot(absl::string_view key);

// A Lua script over one key.
struct RedisScript {
  explicit RedisScript(absl::string_view text);

  absl::string_view text;
  // The SHA-1 of `text`, in hexadecimal digits.
  std::string digest;
};

struct RedisCommand {
  // The key that decides which node is asked. The first argument of a script.
  std::string key = {};
  const RedisScript* script = nullptr;
  // All arguments of a command; of a script those behind the key. Must outlive the call.
  std::vector<absl::string_view> arguments = {};
  // Maximum memory of the reply.
  size_t max_reply_bytes = size_t{64} << 20;
};

// The primaries, and the slots that each serves. Without a cluster one node serves all slots.
struct RedisTopology {
  std::vector<RedisNode> primaries = {};
  // Nodes that may know a later topology.
  std::vector<RedisNode> replicas = {};
  // Index of the primary, or -1.
  std::array<int16_t, kRedisSlots> primary_of_slot = {};
};

// Parses the reply to CLUSTER SLOTS of `asked`. Returns Unavailable if it is something else.
absl::StatusOr<RedisTopology> ParseClusterSlots(const RedisReply& reply, const RedisNode& asked);

// Returns the Status for the text of an error reply.
absl::Status RedisError(absl::string_view text);

// Thread-safe. Each thread in a call has connections of its own, which go back to a pool. No call
// lasts longer than its deadline, which is of SteadyNow().
class RedisNodes {
 public:
  explicit RedisNodes(RedisAddress address) : address_(std::move(address)) {}

  absl::Time Deadline() const;

  // Sends commands to the nodes of their keys, in pipelines. Follows redirections, and tries again
  // while nodes start or fail over. Commands must be idempotent, as they may be done twice. Returns
  // the replies, or the errors as Status.
  std::vector<absl::StatusOr<RedisReply>> Call(std::span<const RedisCommand> commands,
                                               absl::Time deadline);

  // Sends commands to one node, in a pipeline, and appends the replies, errors too. Returns why the
  // connection failed, if it did before the last reply.
  absl::Status Ask(const RedisNode& node, std::span<const RedisCommand> commands,
                   absl::Time deadline, std::vector<RedisReply>& replies);

  // Finds the topology again.
  absl::StatusOr<std::shared_ptr<const RedisTopology>> Refresh(absl::Time deadline);

 private:
  struct Pending;

  std::shared_ptr<const RedisTopology> topology() const;
  absl::StatusOr<std::unique_ptr<RedisConnection>> Take(const RedisNode& node, absl::Time deadline);
  void GiveBack(const RedisNode& node, std::unique_ptr<RedisConnection> connection);
  absl::Status Send(const RedisNode& node, const std::string& bytes,
                    std::span<const size_t> max_reply_bytes, absl::Time deadline,
                    std::vector<RedisReply>& replies);
  // Returns true if some commands must wait before they are sent again.
  bool CallNode(const RedisNode& node, std::span<Pending* const> commands, absl::Time deadline);
  // Sets is_primary to false if the node is a replica outside a cluster.
  absl::StatusOr<RedisTopology> AskTopology(const RedisNode& node, absl::Time deadline,
                                            bool& is_primary);

  const RedisAddress address_;
  // Set when a node fails or redirects: the next call finds the topology again.
  std::atomic<bool> stale_ = true;
  mutable Mutex mutex_;
  std::shared_ptr<const RedisTopology> topology_ ABSL_GUARDED_BY(mutex_);
  std::map<RedisNode, std::vector<std::unique_ptr<RedisConnection>>> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace sis
