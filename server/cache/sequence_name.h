// The name of a sequence within its run: id and attempt.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace sis {

// A SequenceName that doesn't own its id.
struct SequenceNameView {
  absl::string_view id;
  uint32_t attempt;

  friend bool operator==(const SequenceNameView&, const SequenceNameView&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const SequenceNameView& name) {
    return H::combine(std::move(h), name.id, name.attempt);
  }
};

struct SequenceName {
  std::string id;
  uint32_t attempt;

  operator SequenceNameView() const { return {id, attempt}; }

  friend auto operator<=>(const SequenceName&, const SequenceName&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const SequenceName& name) {
    return H::combine(std::move(h), name.id, name.attempt);
  }
};

// Returns the heap bytes of a string with this id; 0 if it fits inside the string object.
inline int64_t HeapBytes(absl::string_view id) {
  return id.size() <= std::string().capacity() ? 0 : static_cast<int64_t>(id.size() + 24) / 16 * 16;
}

// Returns "sequence 'a' attempt 0", for messages.
inline std::string ToString(SequenceNameView name) {
  return absl::StrCat("sequence '", name.id, "' attempt ", name.attempt);
}

}  // namespace sis
