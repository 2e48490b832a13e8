// A store's items in a map, which a later store finds again. None expires.
#pragma once

#include <functional>
#include <map>
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

  absl::Status Add(std::span<const Item> items) override { return Put(items); }
  absl::Status Put(std::span<const Item> items) override {
    WriterLock lock(map_.mutex);
    for (const Item& item : items) map_.items[item.key] = item.value;
    return absl::OkStatus();
  }
  std::vector<absl::StatusOr<std::string>> Get(std::span<const std::string> keys) override {
    WriterLock lock(map_.mutex);
    std::vector<absl::StatusOr<std::string>> values;
    for (const std::string& key : keys) {
      const auto found = map_.items.find(key);
      if (found == map_.items.end()) {
        values.push_back(absl::NotFoundError(""));
      } else {
        values.push_back(found->second);
      }
    }
    return values;
  }
  absl::StatusOr<size_t> Remove(std::span<const std::string> keys) override {
    WriterLock lock(map_.mutex);
    size_t removed = 0;
    for (const std::string& key : keys) removed += map_.items.erase(key);
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
