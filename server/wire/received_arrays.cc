#include "server/wire/received_arrays.h"

#include <algorithm>
#include <climits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/wire_format_lite.h"

namespace sis {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using google::protobuf::io::StringOutputStream;

// Protobuf refuses longer tags and sizes in messages; CodedInputStream doesn't.
constexpr int kMaxTagBytes = 5;

// What stands in a field for the array that arrived in it.
struct Location {
  uint32_t offset;
  uint32_t size;
};

// Copies a message, with locations in place of arrays and without unknown fields. It understands of
// the wire format what it takes to find the fields; whether the rest makes sense is left to
// protobuf.
class ArrayExtractor {
 public:
  ArrayExtractor(const ScatteredBytes& bytes, ParsingCharge& charge)
      : bytes_(bytes), charge_(charge), stream_(bytes), input_(&stream_) {}

  // The fields up to `end`, in which messages and groups are nested `depth` deep at most. False if
  // they are malformed, or take too much memory.
  bool Extract(const std::vector<MessageShape::Field>& fields, size_t end, int depth,
               std::string& extracted) {
    StringOutputStream stream(&extracted);
    CodedOutputStream output(&stream);
    while (offset() < end) {
      const size_t start = offset();
      uint32_t tag = 0;
      if (!ReadTag(tag)) return false;
      const auto field = std::ranges::find(fields, tag, &MessageShape::Field::tag);
      if (field == fields.end()) {
        if (!Skip(tag, end, depth)) return false;
      } else if (!Take(field->bytes) || !ExtractField(*field, start, end, depth, output)) {
        return false;
      }
    }
    return true;
  }

  bool has_no_room() const { return has_no_room_; }

 private:
  using Kind = MessageShape::Kind;

  // Of a packed number, in an array that has just grown.
  static constexpr int64_t kBytesPerNumber = 16;
  // Of what is extracted, in a string that has just grown.
  static constexpr int64_t kCopies = 2;

  size_t offset() const { return static_cast<size_t>(input_.CurrentPosition()); }

  bool Take(int64_t bytes) {
    has_no_room_ = has_no_room_ || !charge_.Take(bytes);
    return !has_no_room_;
  }

  // After its tag, which begins at `start`.
  bool ExtractField(const MessageShape::Field& field, size_t start, size_t end, int depth,
                    CodedOutputStream& output) {
    if (field.kind == Kind::kNumber) {
      return WireFormatLite::SkipField(&input_, field.tag) && offset() <= end &&
             Copy(start, output);
    }
    int size = 0;
    if (!ReadSize(end, size)) return false;
    switch (field.kind) {
      case Kind::kArray:
        output.WriteTag(field.tag);
        return ExtractArray(size, output);
      case Kind::kMessage: {
        std::string message;
        if (!Extract(field.fields, offset() + size, depth - 1, message)) return false;
        if (!Take(kCopies * static_cast<int64_t>(message.size()))) return false;
        output.WriteTag(field.tag);
        output.WriteVarint32(static_cast<uint32_t>(message.size()));
        output.WriteString(message);
        return true;
      }
      default:
        return Take(size * (field.kind == Kind::kNumbers ? kBytesPerNumber : 1)) &&
               input_.Skip(size) && Copy(start, output);
    }
  }

  // An unknown field, after its tag. WireFormatLite::SkipField takes sizes and tags that protobuf
  // refuses, so only numbers are left to it.
  bool Skip(uint32_t tag, size_t end, int depth) {
    switch (WireFormatLite::GetTagWireType(tag)) {
      case WireFormatLite::WIRETYPE_LENGTH_DELIMITED: {
        int size = 0;
        return WireFormatLite::GetTagFieldNumber(tag) != 0 && ReadSize(end, size) &&
               input_.Skip(size);
      }
      case WireFormatLite::WIRETYPE_START_GROUP:
        return WireFormatLite::GetTagFieldNumber(tag) != 0 && depth > 0 &&
               SkipGroup(tag, end, depth - 1);
      default:
        return WireFormatLite::SkipField(&input_, tag) && offset() <= end;
    }
  }

  bool SkipGroup(uint32_t group, size_t end, int depth) {
    while (offset() < end) {
      uint32_t tag = 0;
      if (!ReadTag(tag)) return false;
      if (WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_END_GROUP) {
        return offset() <= end &&
               WireFormatLite::GetTagFieldNumber(tag) == WireFormatLite::GetTagFieldNumber(group);
      }
      if (!Skip(tag, end, depth)) return false;
    }
    return false;
  }

  bool ReadTag(uint32_t& tag) {
    const size_t start = offset();
    tag = input_.ReadTagNoLastTag();
    return offset() - start <= kMaxTagBytes;
  }

  // Of the field that comes, which must lie before `end`.
  bool ReadSize(size_t end, int& size) {
    const size_t start = offset();
    return input_.ReadVarintSizeAsInt(&size) && offset() - start <= kMaxTagBytes &&
           offset() <= end && static_cast<size_t>(size) <= end - offset();
  }

  bool ExtractArray(int size, CodedOutputStream& output) {
    const Location location{static_cast<uint32_t>(offset()), static_cast<uint32_t>(size)};
    output.WriteVarint32(size == 0 ? 0 : sizeof(location));
    if (size > 0) output.WriteRaw(&location, sizeof(location));
    return input_.Skip(size);
  }

  // What was read since `start`, as it is.
  bool Copy(size_t start, CodedOutputStream& output) {
    if (!Take(kCopies * static_cast<int64_t>(offset() - start))) return false;
    while (start < offset()) {
      const std::string_view piece = bytes_.PieceAt(start).substr(0, offset() - start);
      output.WriteRaw(piece.data(), static_cast<int>(piece.size()));
      start += piece.size();
    }
    return true;
  }

  const ScatteredBytes& bytes_;
  ParsingCharge& charge_;
  ScatteredInput stream_;
  CodedInputStream input_;
  bool has_no_room_ = false;
};

}  // namespace

ArrayField ReceivedArrays::Of(const std::string& field) const {
  if (in_fields_ || field.empty()) return ArrayField(field);
  Location location;
  std::memcpy(&location, field.data(), sizeof(location));
  return ArrayField(bytes_, location.offset, location.size);
}

absl::Status ReceivedArrays::Parse(ScatteredBytes bytes, const MessageShape& shape,
                                   ParsingCharge& charge, google::protobuf::Message& message,
                                   ReceivedArrays& arrays) {
  arrays.in_fields_ = false;
  arrays.bytes_ = std::move(bytes);
  const auto malformed = [&message] {
    return absl::InvalidArgumentError(
        absl::StrCat("not a ", message.GetDescriptor()->full_name(), " in protobuf"));
  };
  if (arrays.bytes_.size() > INT_MAX) return malformed();
  std::string extracted;
  ArrayExtractor extractor(arrays.bytes_, charge);
  if (!extractor.Extract(shape.fields(), arrays.bytes_.size(),
                         CodedInputStream::GetDefaultRecursionLimit(), extracted)) {
    return extractor.has_no_room() ? charge.Refusal() : malformed();
  }
  if (!message.ParseFromString(extracted)) return malformed();
  return absl::OkStatus();
}

}  // namespace sis
