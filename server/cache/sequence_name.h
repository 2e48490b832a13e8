// What a sequence is called within its run.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace sis {

// A SequenceName whose id is kept elsewhere.
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

// For tables that are looked up by either.
struct SequenceNameHash {
  using is_transparent = void;
  size_t operator()(SequenceNameView name) const { return absl::Hash<SequenceNameView>()(name); }
};
struct SequenceNameEqual {
  using is_transparent = void;
  bool operator()(SequenceNameView a, SequenceNameView b) const { return a == b; }
};

// "sequence 'a' attempt 0", for messages.
inline std::string ToString(SequenceNameView name) {
  return absl::StrCat("sequence '", name.id, "' attempt ", name.attempt);
}

}  // namespace sis
