// Puts the arrays of a message into a segment, rightly or, as a faulty client would, wrongly.
#pragma once

#include <google/protobuf/message.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "server/shared_memory/shared_segment.h"
#include "server/testing/replace_arrays.h"
#include "server/wire/segment_range.h"

namespace sis {

// Some arrays stay in the message, where their bytes name no part of the segment, or name one only
// by chance; for some the message names another part than theirs. The arrays' last bytes decide
// which.
class SegmentMover {
 public:
  explicit SegmentMover(SharedSegment& segment) : segment_(segment) {}

  void Move(google::protobuf::Message& message) {
    ReplaceArrays(message, [this](const std::string& array) { return Move(array); });
  }

  // Whether all arrays are in the segment as they were in the message.
  bool faithful() const { return faithful_; }
  // Where free bytes begin, at a multiple of 64.
  uint64_t end() const { return std::min<uint64_t>(segment_.size(), (next_ + 63) / 64 * 64); }

 private:
  std::string Move(const std::string& array) {
    if (array.empty()) return array;
    if (array.size() > segment_.size() - next_ || array.back() == 7) {
      faithful_ = false;
      return array;
    }
    SegmentRange part{next_, array.size()};
    segment_.Write(part.offset, part.size, array.data());
    // The next begins where this ends, at any alignment.
    next_ += array.size();
    if (array.back() == 9) {
      // Elsewhere, inside and outside.
      faithful_ = false;
      uint64_t shift = 0;
      std::memcpy(&shift, array.data(), std::min(array.size(), sizeof(shift)));
      part.offset += shift;
      part.size ^= shift >> 32;
    }
    return part.ToBytes();
  }

  SharedSegment& segment_;
  uint64_t next_ = 0;
  bool faithful_ = true;
};

}  // namespace sis
