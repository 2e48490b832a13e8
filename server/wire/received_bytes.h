// The bytes of a message that gRPC received, where they lie.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include "absl/status/statusor.h"
#include "server/wire/scattered_bytes.h"

namespace sis {

// Of `buffer`, which must outlive them and not change. InvalidArgument if it holds no message.
//
// Not by ByteBuffer::Dump: a grpc::Slice that is the last to hold such memory gives it back outside
// gRPC's execution context, and gRPC 1.51 needs one where --grpc_memory_bytes is short (ADR 15).
absl::StatusOr<ScatteredBytes> ReceivedBytes(grpc::ByteBuffer& buffer);

}  // namespace sis
