// The arrays of a received message, read where they arrived.
//
// gRPC receives a message in pieces of at most 64 KiB, cut anywhere. Protobuf would copy every
// `bytes` field out of them into a string. Here protobuf parses a message in which the arrays are
// replaced by a few bytes that say where they lie, so that the message means what protobuf says it
// means (the last of several occurrences counts, a later member of a oneof clears an earlier one),
// and the arrays are copied nowhere, or just before they are used. Unknown fields are left out;
// what protobuf will take for the rest is charged before it takes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "server/wire/message_shape.h"
#include "server/wire/parsing_charge.h"
#include "server/wire/scattered_bytes.h"

namespace sis {

// The bytes of one field. The message and what it was parsed from must outlive it.
class ArrayField {
 public:
  ArrayField() = default;
  // Bytes that lie in one piece.
  explicit ArrayField(std::string_view bytes) : data_(bytes.data()), size_(bytes.size()) {}
  // The part [offset, offset + size) of a message.
  ArrayField(const ScatteredBytes& message, size_t offset, size_t size)
      : message_(&message), offset_(offset), size_(size) {}

  // In bytes.
  size_t size() const { return size_; }

  // The elements [first, first + count), which must be there: in place if they lie side by side and
  // aligned, else copied into `scratch`, which they then view.
  template <typename T>
  std::span<const T> Read(size_t first, size_t count, std::vector<T>& scratch) const {
    const size_t offset = first * sizeof(T);
    const size_t size = count * sizeof(T);
    const char* data = data_ != nullptr ? data_ + offset : nullptr;
    if (message_ != nullptr) data = message_->InOnePiece(offset_ + offset, size);
    if (data == nullptr || reinterpret_cast<uintptr_t>(data) % alignof(T) != 0) {
      if (scratch.size() < count) scratch.resize(count);
      if (data != nullptr) {
        std::memcpy(scratch.data(), data, size);
      } else if (message_ != nullptr) {
        message_->Copy(offset_ + offset, size, reinterpret_cast<char*>(scratch.data()));
      }
      return std::span<const T>(scratch).first(count);
    }
    return {reinterpret_cast<const T*>(data), count};
  }

 private:
  // One of the two; none of an empty field.
  const char* data_ = nullptr;
  const ScatteredBytes* message_ = nullptr;
  size_t offset_ = 0;
  size_t size_ = 0;
};

// Where the `bytes` fields of a message are.
class ReceivedArrays {
 public:
  // For a message whose fields hold their bytes themselves.
  ReceivedArrays() = default;

  // The bytes of a field of the message that these arrays belong to.
  ArrayField Of(const std::string& field) const;

  // Parses `bytes`, whose memory must outlive the arrays, into `message`: in place of its bytes
  // every non-empty `bytes` field holds what `Of` understands. InvalidArgument wherever protobuf
  // would not parse it, ResourceExhausted if `charge` has no room for what it makes of it.
  static absl::Status Parse(ScatteredBytes bytes, const MessageShape& shape, ParsingCharge& charge,
                            google::protobuf::Message& message, ReceivedArrays& arrays);

 private:
  bool in_fields_ = true;
  ScatteredBytes bytes_;
};

}  // namespace sis
