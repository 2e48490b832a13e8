// Where a store of a test keeps things: a real RocksDB, or three real memcached nodes.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/store/items/memcached_items.h"
#include "server/store/items/rocksdb_items.h"
#include "server/store/parse_store.h"
#include "server/testing/memcached_server.h"

namespace sis {

// Outlives the store.
class Backing {
 public:
  virtual ~Backing() = default;
  virtual std::string description() const = 0;
  // The database below, for damage. No store may be open.
  virtual std::unique_ptr<ItemStore> OpenItems() = 0;
};

class RocksDbBacking final : public Backing {
 public:
  std::string description() const override { return absl::StrCat("rocksdb:", folder()); }
  std::unique_ptr<ItemStore> OpenItems() override { return *OpenRocksDbItems(folder(), false); }
  std::string folder() const { return directory_.path() + "/db"; }

 private:
  TemporaryDirectory directory_;
};

class MemcachedBacking final : public Backing {
 public:
  std::string description() const override {
    return absl::StrCat("memcached:", absl::StrJoin(sockets(), ","));
  }
  std::unique_ptr<ItemStore> OpenItems() override {
    std::vector<MemcachedNode> nodes;
    for (const std::string& socket : sockets()) nodes.push_back({.host = socket});
    return *OpenMemcachedItems(nodes);
  }
  MemcachedServer& node(int n) { return *nodes_[n]; }

 private:
  std::vector<std::string> sockets() const {
    std::vector<std::string> sockets;
    for (const auto& node : nodes_) sockets.push_back(node->socket());
    return sockets;
  }

  TemporaryDirectory directory_;
  std::vector<std::unique_ptr<MemcachedServer>> nodes_ = [this] {
    std::vector<std::unique_ptr<MemcachedServer>> nodes;
    for (int n = 0; n < 3; ++n) {
      nodes.push_back(
          std::make_unique<MemcachedServer>(absl::StrCat(directory_.path(), "/node", n)));
    }
    return nodes;
  }();
};

inline std::unique_ptr<SequenceStore> Open(const Backing& backing) {
  auto store = OpenStore(backing.description());
  EXPECT_TRUE(store.ok()) << store.status();
  return *std::move(store);
}

}  // namespace sis
