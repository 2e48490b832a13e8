// A store's items in a map, which several stores may share. None expires.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/items/item_store.h"
#include "server/threads/mutex.h"

namespace sis {

struct ItemMap {
  Mutex mutex;
  std::map<std::string, std::string> items ABSL_GUARDED_BY(mutex);
};

// `map` must outlive it.
class ItemsInMemory : public ItemStore {
 public:
  explicit ItemsInMemory(ItemMap& map) : map_(map) {}
  std::string_view name() const override { return "items in memory"; }
  bool forgets() const override { return false; }
  bool shared() const override { return false; }

  std::vector<absl::Status> Add(std::span<const Item> items) override {
    WriterLock lock(map_.mutex);
    std::vector<absl::Status> statuses;
    for (const Item& item : items) {
      const bool added = map_.items.emplace(item.key.key, item.value).second;
      statuses.push_back(added ? absl::OkStatus() : absl::AlreadyExistsError(""));
    }
    return statuses;
  }
  std::vector<absl::Status> Put(std::span<const Item> items) override {
    WriterLock lock(map_.mutex);
    for (const Item& item : items) map_.items[item.key.key] = item.value;
    return std::vector<absl::Status>(items.size());
  }
  absl::Status Swap(const Item& item, const std::optional<std::string>& expected) override {
    WriterLock lock(map_.mutex);
    const auto found = map_.items.find(item.key.key);
    const bool there = found != map_.items.end();
    if (there != expected.has_value() || (there && found->second != *expected)) {
      return absl::AbortedError("");
    }
    map_.items[item.key.key] = item.value;
    return absl::OkStatus();
  }
  std::vector<absl::StatusOr<std::string>> Get(std::span<const ItemKey> keys) override {
    WriterLock lock(map_.mutex);
    std::vector<absl::StatusOr<std::string>> values;
    for (const ItemKey& key : keys) {
      const auto found = map_.items.find(key.key);
      if (found == map_.items.end()) {
        values.push_back(absl::NotFoundError(""));
      } else {
        values.push_back(found->second);
      }
    }
    return values;
  }
  absl::StatusOr<size_t> Remove(std::span<const ItemKey> keys) override {
    WriterLock lock(map_.mutex);
    size_t removed = 0;
    for (const ItemKey& key : keys) removed += map_.items.erase(key.key);
    return removed;
  }
  absl::Status RemoveRange(const std::string& first, const std::string& last) override {
    WriterLock lock(map_.mutex);
    map_.items.erase(map_.items.lower_bound(first), map_.items.lower_bound(last));
    return absl::OkStatus();
  }
  absl::Status Scan(
      const std::string& first,
      const std::function<std::string(std::string_view, std::string_view)>& visit) override {
    WriterLock lock(map_.mutex);
    auto item = map_.items.lower_bound(first);
    while (item != map_.items.end()) {
      const std::string next = visit(item->first, item->second);
      if (next.empty()) break;
      item = map_.items.lower_bound(next);
    }
    return absl::OkStatus();
  }

 private:
  ItemMap& map_;
};

}  // namespace sis
