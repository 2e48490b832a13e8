// Messages on their way into gRPC, arrays in place.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <memory>

#include "google/protobuf/message_lite.h"

namespace sis {

// The same bytes as protobuf writes. Long `bytes` fields are not copied: the buffer holds on to the
// message, which must not change from now on.
grpc::ByteBuffer SerializeInPlace(std::shared_ptr<const google::protobuf::MessageLite> message);

}  // namespace sis
