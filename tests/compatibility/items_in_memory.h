// Items of a store in a map. None expires.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/store/items/item_store.h"
#include "server/threads/mutex.h"

namespace sis {

using StoredItems = std::map<std::string, std::string>;

// The items must outlive it.
class ItemsInMemory final : public ItemStore {
 public:
  explicit ItemsInMemory(StoredItems& items) : items_(items) {}
  std::string_view name() const override { return "items in memory"; }
  bool forgets() const override { return false; }
  bool shared() const override { return false; }

  std::vector<absl::Status> Add(std::span<const Item> items) override {
    WriterLock lock(mutex_);
    std::vector<absl::Status> statuses;
    for (const Item& item : items) {
      const bool added = items_.emplace(item.key.key, item.value).second;
      statuses.push_back(added ? absl::OkStatus() : absl::AlreadyExistsError(""));
    }
    return statuses;
  }
  std::vector<absl::Status> Put(std::span<const Item> items) override {
    WriterLock lock(mutex_);
    for (const Item& item : items) items_[item.key.key] = item.value;
    return std::vector<absl::Status>(items.size());
  }
  absl::Status Swap(const Item& item, const std::optional<std::string>& expected) override {
    WriterLock lock(mutex_);
    const auto found = items_.find(item.key.key);
    const bool there = found != items_.end();
    if (there != expected.has_value() || (there && found->second != *expected)) {
      return absl::AbortedError("");
    }
    items_[item.key.key] = item.value;
    return absl::OkStatus();
  }
  std::vector<absl::StatusOr<std::string>> Get(std::span<const ItemKey> keys) override {
    WriterLock lock(mutex_);
    std::vector<absl::StatusOr<std::string>> values;
    for (const ItemKey& key : keys) {
      const auto found = items_.find(key.key);
      if (found == items_.end()) {
        values.push_back(absl::NotFoundError(""));
      } else {
        values.push_back(found->second);
      }
    }
    return values;
  }
  absl::StatusOr<size_t> Remove(std::span<const ItemKey> keys) override {
    WriterLock lock(mutex_);
    size_t removed = 0;
    for (const ItemKey& key : keys) removed += items_.erase(key.key);
    return removed;
  }
  absl::Status RemoveRange(const std::string& first, const std::string& last) override {
    WriterLock lock(mutex_);
    items_.erase(items_.lower_bound(first), items_.lower_bound(last));
    return absl::OkStatus();
  }
  absl::Status Scan(
      const std::string& first,
      const std::function<std::string(std::string_view, std::string_view)>& visit) override {
    WriterLock lock(mutex_);
    auto item = items_.lower_bound(first);
    while (item != items_.end()) {
      const std::string next = visit(item->first, item->second);
      if (next.empty()) break;
      item = items_.lower_bound(next);
    }
    return absl::OkStatus();
  }

 private:
  Mutex mutex_;
  StoredItems& items_;
};

}  // namespace sis
