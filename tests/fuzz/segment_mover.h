// Puts the arrays of a message into a segment, as a client would, or as one would that errs.
#pragma once

#include <google/protobuf/message.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "server/segments/shared_segment.h"
#include "server/wire/segment_part.h"

namespace sis {

// Some arrays stay as they are: something that is no part of a segment, or only by chance; of some
// the message says that they are elsewhere. Their own last bytes decide which.
class SegmentMover {
 public:
  explicit SegmentMover(SharedSegment& segment) : segment_(segment) {}

  void Move(google::protobuf::Message& message) {
    using google::protobuf::FieldDescriptor;
    const google::protobuf::Reflection& reflection = *message.GetReflection();
    std::vector<const FieldDescriptor*> fields;
    reflection.ListFields(message, &fields);
    for (const FieldDescriptor* field : fields) {
      if (field->type() == FieldDescriptor::TYPE_BYTES) {
        reflection.SetString(&message, field, Move(reflection.GetString(message, field)));
      } else if (field->type() == FieldDescriptor::TYPE_MESSAGE && field->is_repeated()) {
        for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
          Move(*reflection.MutableRepeatedMessage(&message, field, i));
        }
      } else if (field->type() == FieldDescriptor::TYPE_MESSAGE) {
        Move(*reflection.MutableMessage(&message, field));
      }
    }
  }

  // Whether all arrays are in the segment as they were in the message.
  bool faithful() const { return faithful_; }
  // Where the next one would be.
  uint64_t next() const { return next_; }

 private:
  std::string Move(const std::string& array) {
    if (array.empty()) return array;
    if (array.size() > segment_.size() - next_ || array.back() == 7) {
      faithful_ = false;
      return array;
    }
    SegmentPart part{next_, array.size()};
    segment_.Write(part.offset, part.size, array.data());
    next_ = std::min<uint64_t>(segment_.size(), (next_ + array.size() + 63) / 64 * 64);
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
