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
  // Offsets in messages are multiples of it.
  static constexpr size_t kAlignment = 64;

  void Add(std::span<const std::byte> memory, const std::string& segment);
  void Remove(const std::string& segment);

  // What stands in a message for arrays; null unless one is not empty, and all such lie in one
  // segment, from multiples of kAlignment on.
  struct Locations {
    std::string segment;
    std::vector<std::string> fields;
  };
  std::optional<Locations> Find(std::span<const std::span<const std::byte>> arrays) const;

 private:
  struct Mapped {
    size_t size;
    std::string segment;
  };

  mutable std::mutex mutex_;
  std::map<const std::byte*, Mapped> mapped_;  // by where they begin; guarded by mutex_
};

}  // namespace sis
