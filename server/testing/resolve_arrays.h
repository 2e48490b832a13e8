// Undoes what ReceivedArrays::Parse does, to compare with what protobuf reads.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "google/protobuf/message.h"
#include "server/testing/replace_arrays.h"
#include "server/wire/received_arrays.h"

namespace sis {

// Puts the arrays into the fields of the message that they belong to.
inline void ResolveArrays(const ReceivedArrays& arrays, google::protobuf::Message& message) {
  ReplaceArrays(message, [&arrays](const std::string& field) {
    const ArrayField array = arrays.Of(field);
    std::vector<char> copy;
    const std::span<const char> bytes = array.Read<char>(0, array.size(), copy);
    return std::string(bytes.begin(), bytes.end());
  });
}

}  // namespace sis
