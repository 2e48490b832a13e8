// The bytes of a message that gRPC received, where they lie.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include "absl/status/statusor.h"
#include "server/wire/parsing_charge.h"
#include "server/wire/scattered_bytes.h"

namespace sis {

// Of `buffer`, which must outlive them and not change. InvalidArgument if it holds no message,
// ResourceExhausted if `charge` has no room to note all of its pieces, of which a client may make
// many.
//
// Not by ByteBuffer::Dump: a grpc::Slice that is the last to hold such memory gives it back outside
// gRPC's execution context, and gRPC 1.51 needs one where --grpc_memory_bytes is short (ADR 15).
absl::StatusOr<ScatteredBytes> ReceivedBytes(grpc::ByteBuffer& buffer, ParsingCharge& charge);

}  // namespace sis
