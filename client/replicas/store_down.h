// Positions of replicas that give no answer, in what several replicas answer together.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sis/v1/ratio_service.pb.h"

namespace sis {

// The record digest of a slice whose replica was down when it was fetched.
inline constexpr uint64_t kStoreDownDigest = std::numeric_limits<uint64_t>::max();

inline v1::MissingRange StoreDown(size_t number, const v1::Slice& slice) {
  v1::MissingRange range;
  range.set_slice(static_cast<uint32_t>(number));
  range.set_first_position(slice.first_position());
  range.set_length(slice.length());
  range.set_reason(v1::STORE_DOWN);
  return range;
}

// Adds the ranges of a part, with their slices' numbers in the whole. Internal if a slice is none.
inline absl::Status AddRenumbered(const google::protobuf::RepeatedPtrField<v1::MissingRange>& part,
                                  std::span<const size_t> numbers,
                                  std::vector<v1::MissingRange>& missing) {
  for (v1::MissingRange range : part) {
    if (range.slice() >= numbers.size()) {
      return absl::InternalError(absl::StrCat("the server misses positions of slice ",
                                              range.slice(), " of ", numbers.size()));
    }
    range.set_slice(static_cast<uint32_t>(numbers[range.slice()]));
    missing.push_back(std::move(range));
  }
  return absl::OkStatus();
}

inline void SortBySlice(std::vector<v1::MissingRange>& missing) {
  std::ranges::stable_sort(missing, {}, [](const v1::MissingRange& range) {
    return std::pair(range.slice(), range.first_position());
  });
}

}  // namespace sis
