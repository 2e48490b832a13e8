#include "server/store/items/memcached_items.h"

#include <libmemcached/memcached.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "server/threads/mutex.h"

namespace sis {
namespace {

constexpr int kConnectMilliseconds = 250;
constexpr int kAnswerMilliseconds = 1000;
// A node that failed is left alone for so long, so that its share fails fast.
constexpr std::chrono::milliseconds kDownTime{500};
// How often another node is looked for by hashing; then any that has a share of the keys is taken.
constexpr int kOthersTried = 16;
constexpr int kRoutesTried = 1 << 16;

struct FreeConnection {
  void operator()(memcached_st* connection) const { memcached_free(connection); }
};
using Connection = std::unique_ptr<memcached_st, FreeConnection>;

struct FreeResult {
  void operator()(memcached_result_st* result) const { memcached_result_free(result); }
};

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

absl::Status FromMemcached(memcached_return_t code) {
  switch (code) {
    case MEMCACHED_SUCCESS:
    case MEMCACHED_STORED:
    case MEMCACHED_DELETED:
      return absl::OkStatus();
    case MEMCACHED_NOTFOUND:
      return absl::NotFoundError("nothing is stored");
    case MEMCACHED_NOTSTORED:
    case MEMCACHED_DATA_EXISTS:
      return absl::AlreadyExistsError("stored already");
    case MEMCACHED_SERVER_MEMORY_ALLOCATION_FAILURE:
      return absl::ResourceExhaustedError("memcached: the node has no room");
    case MEMCACHED_E2BIG:
      return absl::InvalidArgumentError("memcached: larger than the node's largest item");
    default:
      return absl::UnavailableError(absl::StrCat("memcached: ", memcached_strerror(nullptr, code)));
  }
}

// memcached keeps seconds in 32 signed bits, takes up to 30 days for a delay, and 0 for never. A
// delay goes by the node's own clock: by another that is late, it would take for expired what a
// server has just stored.
time_t Expiration(absl::Time expires) {
  constexpr int64_t kLongestDelay = int64_t{30} * 24 * 3600;
  const int64_t seconds = absl::ToUnixSeconds(expires);
  if (seconds > std::numeric_limits<int32_t>::max()) return 0;
  const int64_t delay = absl::ToInt64Seconds(absl::Ceil(expires - absl::Now(), absl::Seconds(1)));
  if (delay > 0 && delay <= kLongestDelay) return delay;
  return std::max(seconds, kLongestDelay + 1);  // as long past as what was earlier
}

class MemcachedItems final : public ItemStore {
 public:
  explicit MemcachedItems(size_t nodes) : nodes_(nodes), down_until_(nodes) {
    for (auto& until : down_until_) until.store(0, std::memory_order_relaxed);
  }

  absl::Status Open(const std::vector<MemcachedNode>& nodes) {
    prototype_.reset(memcached_create(nullptr));
    for (const auto& [behavior, value] :
         std::initializer_list<std::pair<memcached_behavior_t, int>>{
             {MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED, 1},
             {MEMCACHED_BEHAVIOR_TCP_NODELAY, 1},
             {MEMCACHED_BEHAVIOR_TCP_KEEPALIVE, 1},
             {MEMCACHED_BEHAVIOR_CONNECT_TIMEOUT, kConnectMilliseconds},
             {MEMCACHED_BEHAVIOR_POLL_TIMEOUT, kAnswerMilliseconds},
             {MEMCACHED_BEHAVIOR_SND_TIMEOUT, kAnswerMilliseconds * 1000},
             {MEMCACHED_BEHAVIOR_RCV_TIMEOUT, kAnswerMilliseconds * 1000},
             {MEMCACHED_BEHAVIOR_SUPPORT_CAS, 1}}) {
      const memcached_return_t code = memcached_behavior_set(prototype_.get(), behavior, value);
      if (code != MEMCACHED_SUCCESS) return FromMemcached(code);
    }
    for (const MemcachedNode& node : nodes) {
      const memcached_return_t code =
          node.port == 0 ? memcached_server_add_unix_socket_with_weight(
                               prototype_.get(), node.host.c_str(), node.weight)
                         : memcached_server_add_with_weight(prototype_.get(), node.host.c_str(),
                                                            node.port, node.weight);
      if (code != MEMCACHED_SUCCESS) {
        return absl::InvalidArgumentError(
            absl::StrCat(node.host, ": ", memcached_strerror(prototype_.get(), code)));
      }
    }
    FindRoutes();
    return absl::OkStatus();
  }

  std::string_view name() const override { return "memcached"; }
  bool forgets() const override { return true; }
  bool shared() const override { return true; }

  std::vector<absl::Status> Add(std::span<const Item> items) override {
    std::vector<absl::Status> statuses;
    for (const Item& item : items) statuses.push_back(Write(memcached_add_by_key, item));
    return statuses;
  }

  std::vector<absl::Status> Put(std::span<const Item> items) override {
    std::vector<absl::Status> statuses;
    for (const Item& item : items) statuses.push_back(Write(memcached_set_by_key, item));
    return statuses;
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
    const absl::Status swapped = Write(memcached_cas_by_key, item, version);
    const bool changed = absl::IsAlreadyExists(swapped) || absl::IsNotFound(swapped);
    return changed ? absl::AbortedError("it changed meanwhile") : swapped;
  }

  std::vector<absl::StatusOr<std::string>> Get(std::span<const ItemKey> keys) override {
    std::map<size_t, std::vector<size_t>> by_node;
    {
      const Borrowed connection(*this);
      for (size_t i = 0; i < keys.size(); ++i) {
        by_node[NodeOf(connection.get(), RouteOf(connection.get(), keys[i]))].push_back(i);
      }
    }
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
          OnNode(item_key, [&](memcached_st* connection, const std::string& route) {
            const std::string key = HashKey(item_key.key);
            return memcached_delete_by_key(connection, route.data(), route.size(), key.data(),
                                           key.size(), 0);
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
  // A connection to all nodes, which one thread at a time may use. Goes back to the pool unless it
  // failed: an answer may be under way that nobody waits for.
  class Borrowed {
   public:
    explicit Borrowed(MemcachedItems& items) : items_(items) {
      {
        WriterLock lock(items_.mutex_);
        if (!items_.idle_.empty()) {
          connection_ = std::move(items_.idle_.back());
          items_.idle_.pop_back();
          return;
        }
      }
      connection_.reset(memcached_clone(nullptr, items_.prototype_.get()));
    }
    ~Borrowed() {
      if (connection_ == nullptr) return;
      WriterLock lock(items_.mutex_);
      items_.idle_.push_back(std::move(connection_));
    }
    Borrowed(const Borrowed&) = delete;
    Borrowed& operator=(const Borrowed&) = delete;

    memcached_st* get() const { return connection_.get(); }
    void Discard() { connection_.reset(); }

   private:
    MemcachedItems& items_;
    Connection connection_;
  };

  static size_t NodeOf(memcached_st* connection, const std::string& route) {
    return memcached_generate_hash(connection, route.data(), route.size());
  }

  // A node whose weight is next to nothing beside the others' may have no share, so no route.
  void FindRoutes() {
    const Borrowed connection(*this);
    std::set<size_t> reached;
    for (int n = 0; n < kRoutesTried && reached.size() < nodes_; ++n) {
      std::string route = absl::StrCat("route:", n);
      if (!reached.insert(NodeOf(connection.get(), route)).second) continue;
      routes_.push_back(std::move(route));
    }
  }

  // What is hashed to choose the node.
  std::string RouteOf(memcached_st* connection, const ItemKey& key) const {
    std::string home = HashKey(key.group);
    if (!key.elsewhere || routes_.size() == 1) return home;
    const size_t node = NodeOf(connection, home);
    const auto is_other = [&](const std::string& route) {
      return NodeOf(connection, route) != node;
    };
    for (int n = 0; n < kOthersTried; ++n) {
      std::string route = absl::StrCat(home, ":", n);
      if (is_other(route)) return route;
    }
    return *std::ranges::find_if(routes_, is_other);
  }

  static int64_t Now() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  bool IsDown(size_t node) const { return Now() < down_until_[node].load(); }
  void MarkDown(size_t node) { down_until_[node].store(Now() + kDownTime.count()); }

  // Calls `call` with a connection unless the key's node is known to be down.
  template <typename Call>
  absl::Status OnNode(const ItemKey& key, const Call& call) {
    Borrowed connection(*this);
    const std::string route = RouteOf(connection.get(), key);
    const size_t node = NodeOf(connection.get(), route);
    if (IsDown(node)) return NodeDown(node);
    absl::Status status = FromMemcached(call(connection.get(), route));
    if (absl::IsUnavailable(status)) {
      MarkDown(node);
      connection.Discard();
    }
    return status;
  }

  // By one of libmemcached's functions that write an item; `version` is for the one that compares
  // it.
  template <typename Function, typename... Version>
  absl::Status Write(Function function, const Item& item, Version... version) {
    return OnNode(item.key, [&](memcached_st* connection, const std::string& route) {
      const std::string key = HashKey(item.key.key);
      return function(connection, route.data(), route.size(), key.data(), key.size(),
                      item.value.data(), item.value.size(), Expiration(item.expires), 0,
                      version...);
    });
  }

  static absl::Status NodeDown(size_t node) {
    return absl::UnavailableError(absl::StrCat("memcached: node ", node, " does not answer"));
  }

  // All on one node. `version`, if given, is for the only key.
  std::vector<absl::StatusOr<std::string>> GetOnNode(std::span<const ItemKey> keys,
                                                     uint64_t* version) {
    Borrowed connection(*this);
    const std::string route = RouteOf(connection.get(), keys[0]);
    const size_t node = NodeOf(connection.get(), route);
    using Values = std::vector<absl::StatusOr<std::string>>;
    if (IsDown(node)) return Values(keys.size(), NodeDown(node));

    Values values(keys.size(), absl::NotFoundError("nothing is stored"));
    absl::flat_hash_map<std::string, size_t> index;
    std::vector<std::string> hashed;
    std::vector<const char*> data;
    std::vector<size_t> sizes;
    for (const ItemKey& key : keys) hashed.push_back(HashKey(key.key));
    for (size_t i = 0; i < hashed.size(); ++i) {
      index[hashed[i]] = i;
      data.push_back(hashed[i].data());
      sizes.push_back(hashed[i].size());
    }
    memcached_return_t code = memcached_mget_by_key(connection.get(), route.data(), route.size(),
                                                    data.data(), sizes.data(), keys.size());
    while (code == MEMCACHED_SUCCESS) {
      const std::unique_ptr<memcached_result_st, FreeResult> result(
          memcached_fetch_result(connection.get(), nullptr, &code));
      if (result == nullptr) break;
      const std::string key(memcached_result_key_value(result.get()),
                            memcached_result_key_length(result.get()));
      const auto found = index.find(key);
      if (found == index.end()) continue;  // no key of ours
      values[found->second] =
          std::string(memcached_result_value(result.get()), memcached_result_length(result.get()));
      if (version != nullptr) *version = memcached_result_cas(result.get());
    }
    if (code == MEMCACHED_END || code == MEMCACHED_NOTFOUND || code == MEMCACHED_SUCCESS) {
      return values;
    }
    // What did not come is not known to be missing.
    MarkDown(node);
    connection.Discard();
    for (absl::StatusOr<std::string>& value : values) {
      if (!value.ok()) value = FromMemcached(code);
    }
    return values;
  }

  const size_t nodes_;
  Connection prototype_;             // never used itself
  std::vector<std::string> routes_;  // one to each node, in an order that doesn't depend on theirs
  std::vector<std::atomic<int64_t>> down_until_;  // per node, in milliseconds of Now()
  Mutex mutex_;
  std::vector<Connection> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<ItemStore>> OpenMemcachedItems(
    const std::vector<MemcachedNode>& nodes) {
  auto items = std::make_unique<MemcachedItems>(nodes.size());
  if (absl::Status status = items->Open(nodes); !status.ok()) return status;
  return items;
}

}  // namespace sis
