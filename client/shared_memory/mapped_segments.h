// Which memory of this process the server sees too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace sis {

// The segments of one server that are mapped here. Thread-safe.
class MappedSegments {
 public:
  // Allocations and arrays of answers begin at multiples of it; of requests to older servers all
  // arrays must.
  static constexpr size_t kAlignment = 64;

  // `alignment`: of the arrays of requests, as the server asks for it.
  void Add(std::span<const std::byte> memory, const std::string& segment, size_t alignment);
  void Remove(const std::string& segment);

  // What stands in a message for arrays; null unless one is not empty, and all such lie in one
  // segment, aligned as it asks.
  struct Locations {
    std::string segment;
    size_t alignment = 1;
    std::vector<std::string> fields;
  };
  std::optional<Locations> Find(std::span<const std::span<const std::byte>> arrays) const;

 private:
  struct Mapped {
    size_t size;
    std::string segment;
    size_t alignment;
  };

  mutable std::mutex mutex_;
  std::map<const std::byte*, Mapped> mapped_;  // by where they begin; guarded by mutex_
};

}  // namespace sis
