#include "server/wire/received_arrays.h"

#include <algorithm>
#include <climits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sis {
namespace {

enum WireType {
  kVarint = 0,
  kFixed64 = 1,
  kDelimited = 2,
  kStartGroup = 3,
  kEndGroup = 4,
  kFixed32 = 5
};

// What stands in a field for the array that arrived in it.
struct Location {
  uint32_t offset;
  uint32_t size;
};

std::vector<ArrayPaths::Field> PathsFrom(const google::protobuf::Descriptor& type) {
  std::vector<ArrayPaths::Field> fields;
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *type.field(i);
    const auto number = static_cast<uint32_t>(field.number());
    if (field.type() == google::protobuf::FieldDescriptor::TYPE_BYTES) {
      fields.push_back({number, {}});
    } else if (field.type() == google::protobuf::FieldDescriptor::TYPE_MESSAGE) {
      std::vector<ArrayPaths::Field> inner = PathsFrom(*field.message_type());
      if (!inner.empty()) fields.push_back({number, std::move(inner)});
    }
  }
  return fields;
}

// Copies a message to a string, with locations in place of arrays. It understands of the wire
// format what it takes to find the fields; whether the rest makes sense is left to protobuf.
class ArrayExtractor {
 public:
  explicit ArrayExtractor(const ScatteredBytes& bytes) : bytes_(bytes) {}

  // The fields up to `end`. False if they are malformed.
  bool Extract(const std::vector<ArrayPaths::Field>& paths, size_t end) {
    int groups = 0;  // open, one in the other; nothing in a group is a field that is known
    while (offset_ < end) {
      const size_t start = offset_;
      uint32_t tag = 0;
      if (!ReadTag(tag)) return false;
      const uint32_t number = tag >> 3;
      if (number == 0) return false;
      switch (tag & 7) {
        case kVarint:
          if (!SkipVarint()) return false;
          break;
        case kFixed64:
          offset_ += 8;
          break;
        case kFixed32:
          offset_ += 4;
          break;
        case kDelimited: {
          uint32_t size = 0;
          if (!ReadSize(size) || size > end - std::min(offset_, end)) return false;
          const auto path = std::ranges::find(paths, number, &ArrayPaths::Field::number);
          if (groups == 0 && path != paths.end() && size > 0) {
            WriteVarint(tag);
            if (path->fields.empty()) {
              WriteLocation(size);
            } else if (!ExtractMessage(path->fields, size)) {
              return false;
            }
            continue;
          }
          offset_ += size;
          break;
        }
        case kStartGroup:
          ++groups;
          break;
        case kEndGroup:
          if (--groups < 0) return false;
          break;
        default:
          return false;
      }
      if (offset_ > end) return false;
      CopySince(start);
    }
    return true;
  }

  const std::string& extracted() const { return extracted_; }

 private:
  // The next byte, or 0 beyond the last: callers check afterwards that they are not beyond an end.
  uint8_t NextByte() {
    if (offset_ - piece_offset_ >= piece_.size()) {
      piece_ = bytes_.PieceAt(offset_);
      piece_offset_ = offset_;
    }
    const size_t in_piece = offset_++ - piece_offset_;
    return in_piece < piece_.size() ? static_cast<uint8_t>(piece_[in_piece]) : 0;
  }

  // A varint of at most 5 bytes, as protobuf takes them for tags and sizes.
  bool ReadShortVarint(uint64_t& value) {
    for (int shift = 0; shift < 35; shift += 7) {
      const uint64_t byte = NextByte();
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  bool ReadTag(uint32_t& tag) {
    uint64_t value = 0;
    if (!ReadShortVarint(value)) return false;
    tag = static_cast<uint32_t>(value);  // protobuf loses the upper bits as well
    return true;
  }

  bool ReadSize(uint32_t& size) {
    uint64_t value = 0;
    if (!ReadShortVarint(value) || value > INT_MAX) return false;
    size = static_cast<uint32_t>(value);
    return true;
  }

  bool SkipVarint() {
    for (int i = 0; i < 10; ++i) {
      if (NextByte() < 0x80) return true;
    }
    return false;
  }

  void CopySince(size_t start) {
    const size_t size = extracted_.size();
    extracted_.resize(size + (offset_ - start));
    bytes_.Copy(start, offset_ - start, extracted_.data() + size);
  }

  void WriteVarint(uint32_t value) {
    for (; value >= 0x80; value >>= 7) extracted_.push_back(static_cast<char>(value | 0x80));
    extracted_.push_back(static_cast<char>(value));
  }

  void WriteLocation(uint32_t size) {
    const Location location{static_cast<uint32_t>(offset_), size};
    WriteVarint(sizeof(location));
    extracted_.append(reinterpret_cast<const char*>(&location), sizeof(location));
    offset_ += size;
  }

  bool ExtractMessage(const std::vector<ArrayPaths::Field>& paths, uint32_t size) {
    // The size is known when the message has been written: as a varint of a fixed length, of which
    // protobuf takes leading zeros.
    constexpr size_t kSizeBytes = 5;
    extracted_.append(kSizeBytes, '\0');
    const size_t start = extracted_.size();
    if (!Extract(paths, offset_ + size)) return false;
    uint64_t extracted_size = extracted_.size() - start;
    if (extracted_size > INT_MAX) return false;
    for (size_t i = 0; i < kSizeBytes; ++i, extracted_size >>= 7) {
      const bool last = i + 1 == kSizeBytes;
      extracted_[start - kSizeBytes + i] =
          static_cast<char>((extracted_size & 0x7f) | (last ? 0 : 0x80));
    }
    return true;
  }

  const ScatteredBytes& bytes_;
  size_t offset_ = 0;
  // The piece that was read last, and where it begins.
  std::string_view piece_;
  size_t piece_offset_ = 0;
  std::string extracted_;
};

// What a field that is not empty says of its array.
absl::StatusOr<SegmentPart> PartIn(const SharedSegment& segment, const ArrayField& field) {
  std::vector<char> scratch;
  const std::span<const char> bytes =
      field.Read<char>(0, std::min(field.size(), SegmentPart::kBytes + 1), scratch);
  return SegmentPart::Parse({bytes.data(), bytes.size()}, segment.size());
}

// Calls visit(path, field) for all `bytes` fields that are set, until one is refused. `prefix` is
// the path of the message itself, with a dot.
template <typename Visit>
absl::Status ForEachArray(const google::protobuf::Message& message, const std::string& prefix,
                          const Visit& visit) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const std::string path = absl::StrCat(prefix, field->name());
    absl::Status status;
    if (field->type() == FieldDescriptor::TYPE_BYTES) {
      std::string scratch;
      status = visit(path, reflection.GetStringReference(message, field, &scratch));
    } else if (field->type() != FieldDescriptor::TYPE_MESSAGE) {
      continue;
    } else if (!field->is_repeated()) {
      status = ForEachArray(reflection.GetMessage(message, field), path + ".", visit);
    } else {
      for (int i = 0; status.ok() && i < reflection.FieldSize(message, field); ++i) {
        status = ForEachArray(reflection.GetRepeatedMessage(message, field, i),
                              absl::StrCat(path, "[", i, "]."), visit);
      }
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

ArrayPaths::ArrayPaths(const google::protobuf::Descriptor& type) : fields_(PathsFrom(type)) {}

ArrayField ReceivedArrays::Of(const std::string& field) const {
  const ArrayField in_message = InMessage(field);
  if (segment_ == nullptr || in_message.size() == 0) return in_message;
  const absl::StatusOr<SegmentPart> part = PartIn(*segment_, in_message);
  return part.ok() ? ArrayField(*segment_, part->offset, part->size) : ArrayField();
}

absl::Status ReceivedArrays::CheckRanges(const google::protobuf::Message& message) const {
  return ForEachPart(message,
                     [](const std::string&, const SegmentPart&) { return absl::OkStatus(); });
}

absl::Status ReceivedArrays::ForEachPart(const google::protobuf::Message& message,
                                         const VisitPart& visit) const {
  if (segment_ == nullptr) return absl::OkStatus();
  return ForEachArray(message, "", [&](const std::string& path, const std::string& field) {
    const ArrayField in_message = InMessage(field);
    if (in_message.size() == 0) return absl::OkStatus();
    const absl::StatusOr<SegmentPart> part = PartIn(*segment_, in_message);
    return part.ok()
               ? visit(path, *part)
               : absl::InvalidArgumentError(absl::StrCat(path, ": ", part.status().message()));
  });
}

ArrayField ReceivedArrays::InMessage(const std::string& field) const {
  if (in_fields_ || field.empty()) return ArrayField(field);
  Location location;
  std::memcpy(&location, field.data(), sizeof(location));
  return ArrayField(bytes_, location.offset, location.size);
}

absl::Status ReceivedArrays::Parse(ScatteredBytes bytes, const ArrayPaths& paths,
                                   google::protobuf::Message& message, ReceivedArrays& arrays) {
  arrays.in_fields_ = false;
  arrays.bytes_ = std::move(bytes);
  const auto malformed = [&message] {
    return absl::InvalidArgumentError(
        absl::StrCat("not a ", message.GetDescriptor()->full_name(), " in protobuf"));
  };
  if (arrays.bytes_.size() > INT_MAX) return malformed();
  ArrayExtractor extractor(arrays.bytes_);
  if (!extractor.Extract(paths.fields(), arrays.bytes_.size())) return malformed();
  if (!message.ParseFromString(extractor.extracted())) return malformed();
  return absl::OkStatus();
}

}  // namespace sis
