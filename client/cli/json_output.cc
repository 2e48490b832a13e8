#include "client/cli/json_output.h"

#include <google/protobuf/util/json_util.h>

#include <iostream>
#include <string>

namespace sis {

absl::Status PrintJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) return absl::InternalError(std::string(status.message()));
  std::cout << json;
  return absl::OkStatus();
}

}  // namespace sis
