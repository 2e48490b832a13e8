// Which positions have no record, and why.
#pragma once

#include <cstdint>
#include <vector>

#include "sis/v1/ratio_service.pb.h"

namespace sis {

// A range of consecutive missing positions of one slice, in the words of the API.
struct Missing {
  uint32_t first_position;
  uint32_t count;
  v1::MissingReason reason;
};

// Adds a range that lies behind those there, as part of the last one if it continues it.
inline void AddMissing(std::vector<Missing>& ranges, const Missing& range) {
  if (!ranges.empty() && ranges.back().reason == range.reason &&
      ranges.back().first_position + ranges.back().count == range.first_position) {
    ranges.back().count += range.count;
  } else {
    ranges.push_back(range);
  }
}

}  // namespace sis
