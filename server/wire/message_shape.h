// What a message type is made of.
#pragma once

#include <cstdint>
#include <vector>

#include "google/protobuf/descriptor.h"

namespace sis {

// As far as it takes to find the arrays of a message in the bytes that it travels as, and to know
// how much memory protobuf takes for it at most. No message type may contain itself.
class MessageShape {
 public:
  explicit MessageShape(const google::protobuf::Descriptor& type);

  enum class Kind {
    kArray,    // `bytes`
    kMessage,  // of `fields`
    kString,
    kNumber,
    kNumbers,  // packed
  };
  struct Field {
    // That the field comes with. Its number with any other is an unknown field.
    uint32_t tag;
    Kind kind;
    // Of memory, for each time that it comes: besides what grows with its length.
    int64_t bytes;
    std::vector<Field> fields;
  };
  const std::vector<Field>& fields() const { return fields_; }

 private:
  std::vector<Field> fields_;
};

// That of a generated message type.
template <typename Message>
const MessageShape& ShapeOf() {
  static const MessageShape shape(*Message::descriptor());
  return shape;
}

}  // namespace sis
