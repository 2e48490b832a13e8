// The bytes of a message that gRPC received, where they lie.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include "absl/status/statusor.h"
#include "server/wire/scattered_bytes.h"

namespace sis {

// Of `buffer`, which must outlive them and not change. InvalidArgument if it holds no message.
//
// Not ByteBuffer::Dump: its slices keep the message's memory, and gRPC 1.51 reads a null pointer if
// such memory comes back to a short --grpc_memory_bytes from anything but a ByteBuffer, on a thread
// outside gRPC's own work (as its public functions need an ExecCtx:
// https://github.com/grpc/grpc/pull/28655; grpc_slice_unref has none, grpc_byte_buffer_destroy has).
absl::StatusOr<ScatteredBytes> ReceivedBytes(grpc::ByteBuffer& buffer);

}  // namespace sis
