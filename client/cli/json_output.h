// Prints messages as JSON, with the field names of the .proto file; 64-bit integers are strings, as
// protobuf has it.
#pragma once

#include <google/protobuf/message.h>

#include "absl/status/status.h"

namespace sis {

absl::Status PrintJson(const google::protobuf::Message& message);

}  // namespace sis
