// A request as gRPC received it, with its arrays in place.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "server/wire/received_arrays.h"
#include "server/wire/received_bytes.h"

namespace sis {

// Keeps what gRPC received for as long as it lives: the arrays refer to it.
template <typename Message>
class ReceivedMessage {
 public:
  // InvalidArgument where protobuf would not parse it, ResourceExhausted if `parsing` has no room
  // for what is made of it.
  static absl::StatusOr<std::unique_ptr<ReceivedMessage>> Parse(const grpc::ByteBuffer& buffer,
                                                                ByteBudget& parsing) {
    std::unique_ptr<ReceivedMessage> received(new ReceivedMessage(buffer, parsing));
    const absl::StatusOr<ScatteredBytes> bytes =
        ReceivedBytes(received->buffer_, received->charge_);
    if (!bytes.ok()) return bytes.status();
    absl::Status status = ReceivedArrays::Parse(*bytes, ShapeOf<Message>(), received->charge_,
                                                received->message_, received->arrays_);
    if (!status.ok()) return status;
    return received;
  }

  const Message& message() const { return message_; }
  const ReceivedArrays& arrays() const { return arrays_; }

 private:
  ReceivedMessage(const grpc::ByteBuffer& buffer, ByteBudget& parsing)
      : buffer_(buffer), charge_(parsing) {}

  grpc::ByteBuffer buffer_;
  ParsingCharge charge_;  // goes after what it is for
  Message message_;
  ReceivedArrays arrays_;
};

}  // namespace sis
