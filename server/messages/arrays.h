// Arrays in `bytes` fields of messages, and reusable memory.
#pragma once

#include <bit>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace sis {

static_assert(std::endian::native == std::endian::little, "arrays are sent as they lie in memory");

// Sets `array` to the elements of the field `bytes`, which must outlive it. Returns
// InvalidArgument, naming the field, unless there are `count` elements.
template <typename T>
absl::Status ViewArray(absl::string_view name, const std::string& bytes, size_t count,
                       std::span<const T>& array) {
  static_assert(alignof(T) <= alignof(std::string), "strings align their bytes so");
  if (bytes.size() != count * sizeof(T)) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", bytes.size(), " bytes, not the ",
                                                   count * sizeof(T), " of ", count, " elements"));
  }
  array = {reinterpret_cast<const T*>(bytes.data()), count};
  return absl::OkStatus();
}

// Resizes `bytes` to `count` zeros, and returns them as elements to write to.
template <typename T>
std::span<T> ResizeArray(std::string& bytes, size_t count) {
  bytes.assign(count * sizeof(T), '\0');
  return {reinterpret_cast<T*>(bytes.data()), count};
}

// Returns the first `count` elements of `memory`, which is reused and only grows.
template <typename T>
std::span<T> Room(std::vector<T>& memory, size_t count) {
  if (memory.size() < count) memory.resize(count);
  return std::span(memory).first(count);
}

}  // namespace sis
