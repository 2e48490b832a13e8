// What a store of sequences needs of a database: small values under keys, some written once.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sis {

// Items of one group lie on one node, which does what it is told in order.
struct ItemKey {
  std::string group;
  // Unique whatever the group is; any bytes.
  std::string key;
  // On a node that is not the group's, where there are several.
  bool elsewhere = false;
};

// Of a value.
inline constexpr size_t kMostItemBytes = size_t{900} << 10;

struct Item {
  ItemKey key;
  // At most kMostItemBytes.
  std::string value;
  absl::Time expires = absl::InfiniteFuture();
};

// Thread-safe; calls may block. Errors as in SequenceStore.
class ItemStore {
 public:
  virtual ~ItemStore() = default;

  virtual std::string_view name() const = 0;
  // Whether items may vanish before they expire.
  virtual bool forgets() const = 0;
  // Whether other processes may write to it at the same time.
  virtual bool shared() const = 0;

  // OK, or why Add would be refused at present, whatever the item: ResourceExhausted. To be called
  // now and then; makes the store go on once there is room again.
  virtual absl::Status CanAdd() { return absl::OkStatus(); }

  // From `end` on (SteadyNow's), which only comes nearer, nothing is waited for: Unavailable.
  // Others, which wait for nobody, do nothing.
  virtual void EndWaits(absl::Time) {}

  // One status per item; AlreadyExists if there is one under the key, which stays.
  virtual std::vector<absl::Status> Add(std::span<const Item> items) = 0;
  // Overwrites. One status per item.
  virtual std::vector<absl::Status> Put(std::span<const Item> items) = 0;
  // Overwrites what equals `expected` (nullopt: nothing); Aborted if something else is there.
  virtual absl::Status Swap(const Item& item, const std::optional<std::string>& expected) = 0;
  // One result per key, in order; NotFound if there is none.
  virtual std::vector<absl::StatusOr<std::string>> Get(std::span<const ItemKey> keys) = 0;
  // Returns how many there were. Stops at the first error.
  virtual absl::StatusOr<size_t> Remove(std::span<const ItemKey> keys) = 0;

  // In a store that keeps keys in order; others do nothing. All keys of [first, last).
  virtual absl::Status RemoveRange(const std::string& first, const std::string& last) = 0;
  // Calls `visit` with keys from `first` on, in order; it returns from where to go on, or an empty
  // string to stop.
  virtual absl::Status Scan(
      const std::string& first,
      const std::function<std::string(std::string_view key, std::string_view value)>& visit) = 0;
};

}  // namespace sis
