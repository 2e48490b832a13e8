// Items on a fleet of memcached nodes that several replicas share.
//
// Groups are placed by weighted consistent hashing (ketama), and stay where they are while their
// node is down: its share is Unavailable until it is back, the others never notice.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/store/items/item_store.h"

namespace sis {

struct MemcachedNode {
  // A host name or address, or the path of a UNIX socket, which begins with '/'.
  std::string host;
  // 0 with a path.
  uint16_t port = 0;
  uint32_t weight = 1;
};

// Doesn't connect: nodes may come later. InvalidArgument if the nodes can't be used as they are.
absl::StatusOr<std::unique_ptr<ItemStore>> OpenMemcachedItems(
    const std::vector<MemcachedNode>& nodes);

}  // namespace sis
