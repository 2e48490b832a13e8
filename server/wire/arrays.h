// Arrays in `bytes` fields: their lengths, and writing them in place; and memory that is used
// again.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace sis {

static_assert(std::endian::native == std::endian::little, "arrays travel as they lie in memory");

// InvalidArgument unless a field of so many bytes holds `count` elements.
template <typename T>
absl::Status CheckLength(absl::string_view field, size_t bytes, size_t count) {
  if (bytes == count * sizeof(T)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", bytes, " bytes, not the ",
                                                 count * sizeof(T), " of ", count, " elements"));
}

// Makes `bytes` hold `count` zeros, to be written through the span.
template <typename T>
std::span<T> ResizeArray(std::string& bytes, size_t count) {
  bytes.assign(count * sizeof(T), '\0');
  return {reinterpret_cast<T*>(bytes.data()), count};
}

// The first `count` elements of memory that is used again, and only grows.
template <typename T>
std::span<T> Room(std::vector<T>& memory, size_t count) {
  if (memory.size() < count) memory.resize(count);
  return std::span(memory).first(count);
}

}  // namespace sis
