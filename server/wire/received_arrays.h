// The arrays of a received message, read where they arrived.
//
// gRPC receives a message in pieces of at most 64 KiB, cut anywhere. Protobuf would copy every
// `bytes` field out of them into a string. Here protobuf parses a message in which the arrays are
// replaced by a few bytes that say where they lie, so that the message means what protobuf says it
// means (the last of several occurrences counts, a later member of a oneof clears an earlier one),
// and the arrays are copied nowhere, or just before they are used. Unknown fields are left out;
// what protobuf will take for the rest is charged before it takes it.
//
// If a message names a segment, its arrays lie in shared memory, and what its fields hold says
// where (proto/sis/v1/segment.proto).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "server/shared_memory/shared_segment.h"
#include "server/wire/message_shape.h"
#include "server/wire/parsing_charge.h"
#include "server/wire/scattered_bytes.h"
#include "server/wire/segment_range.h"

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
  // The same part of a segment, which must have it and outlive the field.
  ArrayField(const SharedSegment& segment, size_t offset, size_t size)
      : segment_(&segment), offset_(offset), size_(size) {}

  // In bytes.
  size_t size() const { return size_; }
  // That it is a part of; null if it is none's.
  const SharedSegment* segment() const { return segment_; }

  // The elements [first, first + count), which must be there: in place if they lie side by side and
  // aligned, else copied into `scratch`, which they then view. From a segment, whose client may
  // write to it at any time, they are always copied: read once what you check and use.
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
      } else if (segment_ != nullptr) {
        segment_->Read(offset_ + offset, size, scratch.data());
      }
      return std::span<const T>(scratch).first(count);
    }
    return {reinterpret_cast<const T*>(data), count};
  }

  // As Read, but in place from a segment too: for whoever reads each element once, while a
  // GuardedAccess to the segment lives.
  template <typename T>
  std::span<const T> ReadOnce(size_t first, size_t count, std::vector<T>& scratch) const {
    if (segment_ == nullptr) return Read(first, count, scratch);
    const char* data = segment_->mapping().data() + offset_ + first * sizeof(T);
    if (reinterpret_cast<uintptr_t>(data) % alignof(T) != 0) return Read(first, count, scratch);
    return {reinterpret_cast<const T*>(data), count};
  }

 private:
  // One of the three; none of an empty field.
  const char* data_ = nullptr;
  const ScatteredBytes* message_ = nullptr;
  const SharedSegment* segment_ = nullptr;
  size_t offset_ = 0;
  size_t size_ = 0;
};

// The array of a field: in the message if `segment` is null, else in it, where the field says.
// InvalidArgument begins with `name` unless that is a range in it.
absl::StatusOr<ArrayField> LocateArray(absl::string_view name, const ArrayField& field,
                                       const SharedSegment* segment);

// Where the `bytes` fields of a message are.
class ReceivedArrays {
 public:
  // For a message whose fields hold their bytes themselves.
  ReceivedArrays() = default;

  // The message names this segment: from now on the arrays are looked for in there.
  void LieIn(std::shared_ptr<SharedSegment> segment) { segment_ = std::move(segment); }
  // Of the message; null if it names none.
  const std::shared_ptr<SharedSegment>& segment() const { return segment_; }

  // Whether all fields of the message, or of a message in it, say where in the segment there are
  // arrays. InvalidArgument names the field, by its path, and what is wrong with it. OK without a
  // segment.
  absl::Status CheckRanges(const google::protobuf::Message& message) const;

  // Calls visit(path, part) for all of those, until one is refused. Stops at what CheckRanges
  // refuses as well.
  using VisitRange = std::function<absl::Status(const std::string& path, const SegmentRange& part)>;
  absl::Status ForEachPart(const google::protobuf::Message& message, const VisitRange& visit) const;

  // The bytes of a field of the message that these arrays belong to. Empty if the field fails
  // CheckRanges.
  ArrayField Of(const std::string& field) const;

  // Parses `bytes`, whose memory must outlive the arrays, into `message`: in place of its bytes
  // every non-empty `bytes` field holds what `Of` understands. InvalidArgument wherever protobuf
  // would not parse it, ResourceExhausted if `charge` has no room for what it makes of it.
  static absl::Status Parse(ScatteredBytes bytes, const MessageShape& shape, ParsingCharge& charge,
                            google::protobuf::Message& message, ReceivedArrays& arrays);

 private:
  // What the message has in a field.
  ArrayField InMessage(const std::string& field) const;

  bool in_fields_ = true;
  ScatteredBytes bytes_;
  std::shared_ptr<SharedSegment> segment_;
};

}  // namespace sis
