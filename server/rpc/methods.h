// The methods of sis.v1.RatioService, as protobuf describes them.
#pragma once

#include <google/protobuf/descriptor.h>

#include <string>

namespace sis {

inline const google::protobuf::ServiceDescriptor& Methods() {
  return *google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
      "sis.v1.RatioService");
}

// There must be one of this name.
inline const google::protobuf::MethodDescriptor& MethodNamed(const std::string& name) {
  return *Methods().FindMethodByName(name);
}

}  // namespace sis
