#include "server/admin/query.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace sis {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

absl::Status ReadField(absl::string_view query, const std::string& name,
                       const FieldDescriptor& field, Message& message) {
  const std::string text = QueryValue(query, name);
  if (text.empty()) return absl::OkStatus();
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  uint32_t small = 0;
  uint64_t large = 0;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      reflection.SetString(&message, &field, text);
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_UINT32:
      if (!absl::SimpleAtoi(text, &small)) break;
      reflection.SetUInt32(&message, &field, small);
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_UINT64:
      if (!absl::SimpleAtoi(text, &large)) break;
      reflection.SetUInt64(&message, &field, large);
      return absl::OkStatus();
    case FieldDescriptor::CPPTYPE_ENUM:
      if (const auto* value = field.enum_type()->FindValueByName(text); value != nullptr) {
        reflection.SetEnum(&message, &field, value);
        return absl::OkStatus();
      }
      return absl::InvalidArgumentError(absl::StrCat(name, ": '", text, "' is none"));
    default:
      return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(name, ": '", text, "' is not a number"));
}

}  // namespace

std::string PercentDecoded(absl::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_code = text[i] == '%' && i + 2 < text.size() &&
                         absl::ascii_isxdigit(text[i + 1]) && absl::ascii_isxdigit(text[i + 2]);
    decoded += is_code ? absl::HexStringToBytes(text.substr(i + 1, 2)) : std::string(1, text[i]);
    if (is_code) i += 2;
  }
  return decoded;
}

std::string QueryValue(absl::string_view query, absl::string_view name) {
  for (const absl::string_view part : absl::StrSplit(query, '&')) {
    const std::pair<absl::string_view, absl::string_view> name_and_value =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    if (name_and_value.first != name) continue;
    return PercentDecoded(absl::StrReplaceAll(name_and_value.second, {{"+", " "}}));
  }
  return "";
}

absl::Status ReadQuery(absl::string_view query, Message& request) {
  absl::Status status;
  for (int i = 0; i < request.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *request.GetDescriptor()->field(i);
    if (field.is_repeated()) continue;
    if (field.type() != FieldDescriptor::TYPE_MESSAGE) {
      status.Update(ReadField(query, field.name(), field, request));
      continue;
    }
    Message& inner = *request.GetReflection()->MutableMessage(&request, &field);
    for (int j = 0; j < inner.GetDescriptor()->field_count(); ++j) {
      const FieldDescriptor& part = *inner.GetDescriptor()->field(j);
      const std::string& name = part.name() == "id" ? field.name() : part.name();
      status.Update(ReadField(query, name, part, inner));
    }
    // Who begins a list names nothing that it comes after.
    const bool is_named = inner.GetDescriptor()->FindFieldByName("id") == nullptr ||
                          !QueryValue(query, field.name()).empty();
    if (!is_named || inner.ByteSizeLong() == 0) {
      request.GetReflection()->ClearField(&request, &field);
    }
  }
  return status;
}

}  // namespace sis
