// Undoes what ReceivedArrays::Parse does, to compare with what protobuf reads.
#pragma once

#include <string>
#include <vector>

#include "google/protobuf/message.h"
#include "server/wire/received_arrays.h"

namespace sis {

// Puts the arrays into the fields of the message that they belong to.
inline void ResolveArrays(const ReceivedArrays& arrays, google::protobuf::Message& message) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->type() == FieldDescriptor::TYPE_BYTES) {
      std::string scratch;
      const ArrayField array = arrays.Of(reflection.GetStringReference(message, field, &scratch));
      std::vector<char> copy;
      const std::span<const char> bytes = array.Read<char>(0, array.size(), copy);
      reflection.SetString(&message, field, std::string(bytes.begin(), bytes.end()));
    } else if (field->type() == FieldDescriptor::TYPE_MESSAGE && field->is_repeated()) {
      for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
        ResolveArrays(arrays, *reflection.MutableRepeatedMessage(&message, field, i));
      }
    } else if (field->type() == FieldDescriptor::TYPE_MESSAGE) {
      ResolveArrays(arrays, *reflection.MutableMessage(&message, field));
    }
  }
}

}  // namespace sis
