#include "server/wire/message_shape.h"

#include "google/protobuf/message.h"
#include "google/protobuf/wire_format_lite.h"

namespace sis {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;

// An allocation, and its place in a repeated field, which may just have grown.
constexpr int64_t kAllocationBytes = 48;
constexpr int64_t kStringBytes = 48 + kAllocationBytes;
constexpr int64_t kNumberBytes = 16;
// One of many messages, a slice for instance, is made into something of ours as well, and answered.
constexpr int64_t kElementBytes = 512;

std::vector<MessageShape::Field> FieldsOf(const Descriptor& type);

MessageShape::Field MessageField(uint32_t tag, const FieldDescriptor& field) {
  const Descriptor& type = *field.message_type();
  const google::protobuf::Message& empty =
      *google::protobuf::MessageFactory::generated_factory()->GetPrototype(&type);
  return {.tag = tag,
          .kind = MessageShape::Kind::kMessage,
          .bytes = static_cast<int64_t>(empty.SpaceUsedLong()) + kAllocationBytes +
                   (field.is_repeated() ? kElementBytes : 0),
          .fields = FieldsOf(type)};
}

std::vector<MessageShape::Field> FieldsOf(const Descriptor& type) {
  using Kind = MessageShape::Kind;
  std::vector<MessageShape::Field> fields;
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const auto wire_type = WireFormatLite::WireTypeForFieldType(
        static_cast<WireFormatLite::FieldType>(static_cast<int>(field.type())));
    const uint32_t tag = WireFormatLite::MakeTag(field.number(), wire_type);
    switch (field.type()) {
      case FieldDescriptor::TYPE_BYTES:
        fields.push_back({tag, Kind::kArray, kStringBytes, {}});
        break;
      case FieldDescriptor::TYPE_STRING:
        fields.push_back({tag, Kind::kString, kStringBytes, {}});
        break;
      case FieldDescriptor::TYPE_MESSAGE:
        fields.push_back(MessageField(tag, field));
        break;
      default:
        fields.push_back({tag, Kind::kNumber, kNumberBytes, {}});
        if (!field.is_packable()) break;
        fields.push_back(
            {WireFormatLite::MakeTag(field.number(), WireFormatLite::WIRETYPE_LENGTH_DELIMITED),
             Kind::kNumbers,
             kNumberBytes,
             {}});
    }
  }
  return fields;
}

}  // namespace

MessageShape::MessageShape(const Descriptor& type) : fields_(FieldsOf(type)) {}

}  // namespace sis
