// Puts something else in the place of every array of a message. For tests.
#pragma once

#include <google/protobuf/message.h>

#include <string>
#include <vector>

namespace sis {

// Every `bytes` field that is set, nested ones too, becomes change(its bytes).
template <typename Change>
void ReplaceArrays(google::protobuf::Message& message, const Change& change) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->type() == FieldDescriptor::TYPE_BYTES && field->is_repeated()) {
      for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
        reflection.SetRepeatedString(&message, field, i,
                                     change(reflection.GetRepeatedString(message, field, i)));
      }
    } else if (field->type() == FieldDescriptor::TYPE_BYTES) {
      reflection.SetString(&message, field, change(reflection.GetString(message, field)));
    } else if (field->type() == FieldDescriptor::TYPE_MESSAGE && field->is_repeated()) {
      for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
        ReplaceArrays(*reflection.MutableRepeatedMessage(&message, field, i), change);
      }
    } else if (field->type() == FieldDescriptor::TYPE_MESSAGE) {
      ReplaceArrays(*reflection.MutableMessage(&message, field), change);
    }
  }
}

}  // namespace sis
