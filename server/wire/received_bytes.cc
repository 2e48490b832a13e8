#include "server/wire/received_bytes.h"

#include <grpcpp/support/proto_buffer_reader.h>

#include <string_view>
#include <vector>

namespace sis {

namespace {

// Of a piece, here and in ScatteredBytes, in an array that has just grown.
constexpr int64_t kPieceBytes = 64;

}  // namespace

absl::StatusOr<ScatteredBytes> ReceivedBytes(grpc::ByteBuffer& buffer, ParsingCharge& charge) {
  grpc::ProtoBufferReader reader(&buffer);
  if (!reader.status().ok()) return absl::InvalidArgumentError("a message that can't be read");
  std::vector<std::string_view> pieces;
  const void* data;
  int size;
  while (reader.Next(&data, &size)) {
    if (!charge.Take(kPieceBytes)) return charge.Refusal();
    pieces.emplace_back(static_cast<const char*>(data), static_cast<size_t>(size));
  }
  return ScatteredBytes(pieces);
}

}  // namespace sis
