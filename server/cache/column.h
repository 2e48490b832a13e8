// What else belongs to the positions of a run: v1::Column, and values of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sis {

struct Column {
  std::string name;
  uint32_t bytes = 0;  // of one value
  bool per_slot = false;

  // Of all values of one position, where there are so many slots.
  uint32_t width(uint32_t slots) const { return per_slot ? bytes * slots : bytes; }

  friend bool operator==(const Column&, const Column&) = default;
};

inline constexpr size_t kMaxColumns = 8;
inline constexpr uint32_t kMaxColumnBytes = 4096;
// Of all columns, for one position.
inline constexpr uint32_t kMaxColumnsWidth = 16384;

// Of T consecutive positions: [T, width], T at least 1.
struct ColumnValues {
  uint32_t column = 0;  // its index among the run's, below kMaxColumns
  uint32_t width = 0;   // in [1, kMaxColumnsWidth]
  std::span<const std::byte> values;

  uint32_t positions() const { return static_cast<uint32_t>(values.size() / width); }
};

// InvalidArgument names the field of RunConfig that is out of range, and its value.
absl::Status CheckColumns(const std::vector<Column>& columns, uint32_t slots);
// The index of the one with this name; NotFound, beginning with `field`, if there is none.
absl::StatusOr<uint32_t> FindColumn(const std::vector<Column>& columns, std::string_view name,
                                    std::string_view field);
// "name[bytes]" of each, with "* K" where there is one per slot.
std::string ToString(const std::vector<Column>& columns);

}  // namespace sis
