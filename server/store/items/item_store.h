// What a store of sequences needs of a database: values under keys, in the order of the keys.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sis {

struct Item {
  std::string key;
  // What WrapItem returned for the key; it says when the item expires.
  std::string value;
};

// Thread-safe; calls may block. Errors as in SequenceStore.
class ItemStore {
 public:
  virtual ~ItemStore() = default;

  // Returns OK, or the error that Add would return for any item: ResourceExhausted. Must be called
  // now and then: the store takes items again once it has space.
  virtual absl::Status CanAdd() { return absl::OkStatus(); }

  // Writes all items or none, over what is stored under their keys. Leaves space for Put, Remove
  // and RemoveRange on a full disk.
  virtual absl::Status Add(std::span<const Item> items) = 0;
  // Like Add, but may take the space that Add leaves.
  virtual absl::Status Put(std::span<const Item> items) = 0;
  // Returns one result per key, in order; NotFound if nothing is stored or it has expired.
  virtual std::vector<absl::StatusOr<std::string>> Get(std::span<const std::string> keys) = 0;
  // Removes all keys or none. Returns how many were stored.
  virtual absl::StatusOr<size_t> Remove(std::span<const std::string> keys) = 0;
  // Removes all keys in [first, last).
  virtual absl::Status RemoveRange(const std::string& first, const std::string& last) = 0;
  // Calls `visit` with keys from `first` on, in order. It returns the key to continue from, or an
  // empty string to stop.
  virtual absl::Status Scan(
      const std::string& first,
      const std::function<std::string(std::string_view key, std::string_view value)>& visit) = 0;
};

}  // namespace sis
