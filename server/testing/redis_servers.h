// redis-server as a process, alone or as a cluster on this machine.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/store/redis/redis_address.h"
#include "server/store/redis/redis_reply.h"
#include "server/testing/child_process.h"

namespace sis {

// Aborts the test if something fails. The data is in a directory that the destructor removes.
class RedisServers {
 public:
  // Arguments of redis-server, beyond its port and directory.
  using Options = std::vector<std::string>;

  // One node, without persistence unless `options` ask for it.
  explicit RedisServers(Options options = {});
  // A cluster of `primaries`, and of `replicas` of the first primaries.
  RedisServers(int primaries, int replicas, Options options = {});
  ~RedisServers();
  RedisServers(const RedisServers&) = delete;
  RedisServers& operator=(const RedisServers&) = delete;

  // Returns "redis://127.0.0.1:PORT", with all nodes of a cluster, and the options. The timeout is
  // longer than the default, because nodes may answer late on a busy machine.
  std::string address(const std::string& options = "?timeout=20") const;
  const std::string& folder() const { return folder_; }
  const RedisNode& node(size_t i) const { return nodes_[i].address; }

  // Starts a node that was killed. Returns when it answers.
  void Start(size_t i);
  void Kill(size_t i) { nodes_[i].process.reset(); }
  // Returns the reply to a command, errors too.
  RedisReply Ask(size_t i, const std::vector<std::string>& command) const;

 private:
  struct Node {
    RedisNode address;
    int bus_port = 0;
    std::unique_ptr<ChildProcess> process;
  };

  std::string folder_ = "/tmp/sis-redis-XXXXXX";
  Options options_;
  std::vector<Node> nodes_;
};

}  // namespace sis
