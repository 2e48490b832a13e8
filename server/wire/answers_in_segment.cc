#include "server/wire/answers_in_segment.h"

#include <cassert>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace sis {
namespace {

uint64_t Aligned(uint64_t bytes) {
  return (bytes + SegmentPart::kAlignment - 1) / SegmentPart::kAlignment * SegmentPart::kAlignment;
}

}  // namespace

absl::StatusOr<AnswersInSegment> AnswersInSegment::Parse(const v1::SegmentRange& range,
                                                         const ReceivedArrays& arrays,
                                                         std::span<const uint64_t> sizes) {
  if (arrays.segment() == nullptr) {
    return absl::InvalidArgumentError("answers: set, but segment is not");
  }
  const SegmentPart part{range.offset(), range.bytes()};
  if (absl::Status status = part.Check(arrays.segment()->size()); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("answers: ", status.message()));
  }
  uint64_t needed = 0;
  for (const uint64_t size : sizes) needed = Aligned(needed) + size;
  if (needed > part.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("answers.bytes: ", part.size, ", but ", needed, " are needed"));
  }
  return AnswersInSegment(arrays.segment(), part);
}

absl::Status AnswersInSegment::CheckDisjoint(const google::protobuf::Message& request,
                                             const ReceivedArrays& arrays) const {
  return arrays.ForEachPart(
      request, [this](const std::string& path, const SegmentPart& array) -> absl::Status {
        if (array.size == 0 || part_.size == 0) return absl::OkStatus();
        if (array.offset + array.size <= part_.offset ||
            part_.offset + part_.size <= array.offset) {
          return absl::OkStatus();
        }
        return absl::InvalidArgumentError(absl::StrCat(path, ": overlaps the answers"));
      });
}

void AnswersInSegment::Move(google::protobuf::Message& response) const {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& reflection = *response.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(response, &fields);
  uint64_t next = 0;
  for (const FieldDescriptor* field : fields) {
    if (field->type() != FieldDescriptor::TYPE_BYTES) continue;
    std::string scratch;
    const std::string& array = reflection.GetStringReference(response, field, &scratch);
    next = Aligned(next);
    assert(next + array.size() <= part_.size);  // they have the sizes that Parse was told
    const SegmentPart part{part_.offset + next, array.size()};
    segment_->Write(part.offset, part.size, array.data());
    next += array.size();
    reflection.SetString(&response, field, part.ToBytes());
  }
}

}  // namespace sis
