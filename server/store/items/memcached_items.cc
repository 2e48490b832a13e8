#include "server/store/items/memcached_items.h"

#include <libmemcached/memcached.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "server/store/items/memcached_connection.h"
#include "server/threads/mutex.h"
#include "server/threads/steady_now.h"

namespace sis {
namespace {

// A node that failed is left alone for so long, so that its share fails fast.
constexpr absl::Duration kDownTime = absl::Milliseconds(500);
// How often another node is looked for by hashing; then any that has a share of the keys is taken.
constexpr int kOthersTried = 16;
constexpr int kRoutesTried = 1 << 16;

// Which node a key goes to, as libmemcached has it.
struct FreePlacement {
  void operator()(memcached_st* placement) const { memcached_free(placement); }
};
using Placement = std::unique_ptr<memcached_st, FreePlacement>;

// The finaliser of SplitMix64.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// memcached's keys are short and plain: 128 bits, FNV-1a and a chain of SplitMix64's finaliser over
// the bytes. Two keys that collide are told apart by the key inside the value.
std::string HashKey(std::string_view key) {
  uint64_t a = 0xcbf29ce484222325, b = 0x9e3779b97f4a7c15;
  for (const char c : key) {
    a = (a ^ static_cast<uint8_t>(c)) * 0x100000001b3;
    b = Mix(b + static_cast<uint8_t>(c));
  }
  std::array<char, 64> text;
  const int length =
      std::snprintf(text.data(), text.size(), "sis1:%016llx%016llx",
                    static_cast<unsigned long long>(a), static_cast<unsigned long long>(b));
  return std::string(text.data(), length);
}

// memcached keeps seconds in 32 signed bits, takes up to 30 days for a delay, and 0 for never. A
// delay goes by the node's own clock: by another that is late, it would take for expired what a
// server has just stored.
int64_t Expiration(absl::Time expires) {
  constexpr int64_t kLongestDelay = int64_t{30} * 24 * 3600;
  const int64_t seconds = absl::ToUnixSeconds(expires);
  if (seconds > std::numeric_limits<int32_t>::max()) return 0;
  const int64_t delay = absl::ToInt64Seconds(absl::Ceil(expires - absl::Now(), absl::Seconds(1)));
  if (delay > 0 && delay <= kLongestDelay) return delay;
  return std::max(seconds, kLongestDelay + 1);  // as long past as what was earlier
}

class MemcachedItems final : public ItemStore {
 public:
  absl::Status Open(const std::vector<MemcachedNode>& nodes) {
    placement_.reset(memcached_create(nullptr));
    memcached_return_t code =
        memcached_behavior_set(placement_.get(), MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED, 1);
    for (const MemcachedNode& node : nodes) {
      if (code != MEMCACHED_SUCCESS) break;
      code = node.port == 0 ? memcached_server_add_unix_socket_with_weight(
                                  placement_.get(), node.host.c_str(), node.weight)
                            : memcached_server_add_with_weight(placement_.get(), node.host.c_str(),
                                                               node.port, node.weight);
      nodes_.push_back(std::make_unique<Node>(node));
    }
    if (code != MEMCACHED_SUCCESS) {
      return absl::InvalidArgumentError(
          absl::StrCat(nodes_.empty() ? "" : nodes_.back()->address.host, ": ",
                       memcached_strerror(placement_.get(), code)));
    }
    FindRoutes();
    return absl::OkStatus();
  }

  std::string_view name() const override { return "memcached"; }
  bool forgets() const override { return true; }
  bool shared() const override { return true; }

  void EndWaits(absl::Time end) override {
    const int64_t sooner = absl::ToUnixNanos(end);
    int64_t present = end_;
    while (sooner < present && !end_.compare_exchange_weak(present, sooner)) {
    }
  }

  std::vector<absl::Status> Add(std::span<const Item> items) override {
    return WriteAll(MemcachedConnection::Write::kAdd, items);
  }

  std::vector<absl::Status> Put(std::span<const Item> items) override {
    return WriteAll(MemcachedConnection::Write::kSet, items);
  }

  absl::Status Swap(const Item& item, const std::optional<std::string>& expected) override {
    if (!expected.has_value()) {
      absl::Status added = Add({&item, 1})[0];
      return absl::IsAlreadyExists(added) ? absl::AbortedError("something else is stored") : added;
    }
    uint64_t version = 0;
    const absl::StatusOr<std::string> present = GetOnNode({&item.key, 1}, &version)[0];
    if (!present.ok() && !absl::IsNotFound(present.status())) return present.status();
    if (!present.ok() || *present != *expected) {
      return absl::AbortedError("something else is stored");
    }
    const absl::Status swapped = Write(MemcachedConnection::Write::kReplaceVersion, item, version);
    const bool changed = absl::IsAlreadyExists(swapped) || absl::IsNotFound(swapped);
    return changed ? absl::AbortedError("it changed meanwhile") : swapped;
  }

  std::vector<absl::StatusOr<std::string>> Get(std::span<const ItemKey> keys) override {
    std::map<size_t, std::vector<size_t>> by_node;
    for (size_t i = 0; i < keys.size(); ++i) by_node[NodeOf(RouteOf(keys[i]))].push_back(i);
    std::vector<absl::StatusOr<std::string>> values(keys.size());
    for (const auto& [node, indices] : by_node) {
      std::vector<ItemKey> on_node;
      for (const size_t i : indices) on_node.push_back(keys[i]);
      std::vector<absl::StatusOr<std::string>> found = GetOnNode(on_node, nullptr);
      for (size_t n = 0; n < indices.size(); ++n) values[indices[n]] = std::move(found[n]);
    }
    return values;
  }

  absl::StatusOr<size_t> Remove(std::span<const ItemKey> keys) override {
    size_t removed = 0;
    for (const ItemKey& item_key : keys) {
      const absl::Status status =
          OnNode(NodeOf(RouteOf(item_key)), [&](MemcachedConnection& connection) {
            return connection.Delete(HashKey(item_key.key));
          });
      if (absl::IsNotFound(status)) continue;
      if (!status.ok()) return status;
      ++removed;
    }
    return removed;
  }

  // What nobody asks for again leaves memcached by itself.
  absl::Status RemoveRange(const std::string&, const std::string&) override {
    return absl::OkStatus();
  }
  absl::Status Scan(
      const std::string&,
      const std::function<std::string(std::string_view, std::string_view)>&) override {
    return absl::OkStatus();
  }

 private:
  struct Node {
    explicit Node(MemcachedNode node) : address(std::move(node)) {}

    const MemcachedNode address;
    std::atomic<int64_t> down_until = 0;  // nanoseconds of SteadyNow()
    Mutex mutex;
    std::vector<std::unique_ptr<MemcachedConnection>> idle ABSL_GUARDED_BY(mutex);
  };

  size_t NodeOf(const std::string& route) const {
    return memcached_generate_hash(placement_.get(), route.data(), route.size());
  }

  // A node whose weight is next to nothing beside the others' may have no share, so no route.
  void FindRoutes() {
    std::set<size_t> reached;
    for (int n = 0; n < kRoutesTried && reached.size() < nodes_.size(); ++n) {
      std::string route = absl::StrCat("route:", n);
      if (!reached.insert(NodeOf(route)).second) continue;
      routes_.push_back(std::move(route));
    }
  }

  // What is hashed to choose the node.
  std::string RouteOf(const ItemKey& key) const {
    std::string home = HashKey(key.group);
    if (!key.elsewhere || routes_.size() == 1) return home;
    const size_t node = NodeOf(home);
    const auto is_other = [&](const std::string& route) { return NodeOf(route) != node; };
    for (int n = 0; n < kOthersTried; ++n) {
      std::string route = absl::StrCat(home, ":", n);
      if (is_other(route)) return route;
    }
    return *std::ranges::find_if(routes_, is_other);
  }

  // One that nobody uses, or a new one. What has ended meanwhile is let go.
  absl::StatusOr<std::unique_ptr<MemcachedConnection>> Borrow(Node& node) {
    for (;;) {
      std::unique_ptr<MemcachedConnection> connection;
      {
        WriterLock lock(node.mutex);
        if (node.idle.empty()) break;
        connection = std::move(node.idle.back());
        node.idle.pop_back();
      }
      if (connection->IsQuiet()) return connection;
    }
    return MemcachedConnection::Open(node.address.host, node.address.port, end_);
  }

  // Calls `call` with a connection unless the node is known to be down.
  template <typename Call>
  absl::Status OnNode(size_t number, const Call& call) {
    Node& node = *nodes_[number];
    if (absl::ToUnixNanos(SteadyNow()) < node.down_until) {
      return absl::UnavailableError(absl::StrCat("memcached: node ", number, " does not answer"));
    }
    absl::StatusOr<std::unique_ptr<MemcachedConnection>> connection = Borrow(node);
    const absl::Status status = connection.ok() ? call(**connection) : connection.status();
    if (absl::IsUnavailable(status)) {
      node.down_until = absl::ToUnixNanos(SteadyNow() + kDownTime);
    } else {
      WriterLock lock(node.mutex);
      node.idle.push_back(*std::move(connection));
    }
    return status;
  }

  absl::Status Write(MemcachedConnection::Write how, const Item& item, uint64_t version = 0) {
    return OnNode(NodeOf(RouteOf(item.key)), [&](MemcachedConnection& connection) {
      return connection.Store(how, HashKey(item.key.key), item.value, Expiration(item.expires),
                              version);
    });
  }
  std::vector<absl::Status> WriteAll(MemcachedConnection::Write how, std::span<const Item> items) {
    std::vector<absl::Status> statuses;
    for (const Item& item : items) statuses.push_back(Write(how, item));
    return statuses;
  }

  // All on one node. `version`, if given, is for the only key.
  std::vector<absl::StatusOr<std::string>> GetOnNode(std::span<const ItemKey> keys,
                                                     uint64_t* version) {
    using Values = std::vector<absl::StatusOr<std::string>>;
    Values values(keys.size(), absl::NotFoundError("nothing is stored"));
    // The same key may be asked for twice.
    std::map<std::string, std::vector<size_t>> places;
    for (size_t i = 0; i < keys.size(); ++i) places[HashKey(keys[i].key)].push_back(i);
    std::vector<std::string> asked;
    for (const auto& [key, of] : places) asked.push_back(key);
    const absl::Status status =
        OnNode(NodeOf(RouteOf(keys[0])), [&](MemcachedConnection& connection) {
          return connection.Get(asked, [&](size_t i, MemcachedConnection::Found item) {
            for (const size_t place : places[asked[i]]) values[place] = item.value;
            if (version != nullptr) *version = item.version;
          });
        });
    if (status.ok()) return values;
    // What did not come is not known to be missing.
    for (absl::StatusOr<std::string>& value : values) {
      if (!value.ok()) value = status;
    }
    return values;
  }

  Placement placement_;
  std::vector<std::unique_ptr<Node>> nodes_;  // as libmemcached numbers them
  std::vector<std::string> routes_;  // one to each node, in an order that doesn't depend on theirs
  std::atomic<int64_t> end_ = std::numeric_limits<int64_t>::max();  // nanoseconds of SteadyNow()
};

}  // namespace

absl::StatusOr<std::unique_ptr<ItemStore>> OpenMemcachedItems(
    const std::vector<MemcachedNode>& nodes) {
  auto items = std::make_unique<MemcachedItems>();
  if (absl::Status status = items->Open(nodes); !status.ok()) return status;
  return items;
}

}  // namespace sis
