// The addresses that --store=redis://... names.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace sis {

struct RedisNode {
  std::string host;
  uint16_t port = 6379;

  friend auto operator<=>(const RedisNode&, const RedisNode&) = default;
};

// "host:port", for messages.
std::string ToString(const RedisNode& node);
// Sets what [host][:port] names. Returns false if it is something else, or if no host is known.
bool ParseRedisNode(absl::string_view text, RedisNode& node);

struct RedisAddress {
  // Nodes to ask for the others of a cluster, or for the primary; at least one.
  std::vector<RedisNode> nodes;
  std::string user;
  // Read at each connection, so that a rotated password is found. Empty: there is no password.
  std::string password_file;
  // Always 0 in a cluster.
  int database = 0;
  bool tls = false;
  // PEM files, read at each connection. `ca` verifies the server; empty means the system's
  // authorities. Redis asks clients for `cert` and `key` unless tls-auth-clients is "no".
  std::string ca, cert, key;
  // Maximum time of one call of the store, with all its retries.
  absl::Duration timeout = absl::Seconds(2);
};

// Parses redis[s]://[user@]host[:port][,host[:port]...][/database][?option=value&...] with the
// options password_file, ca, cert, key, and timeout in seconds. Returns InvalidArgument for
// anything else, without a password that the address may contain.
absl::StatusOr<RedisAddress> ParseRedisAddress(std::string_view address);

}  // namespace sis
