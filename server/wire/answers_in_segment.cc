#include "server/wire/answers_in_segment.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <string>

#include "absl/strings/str_cat.h"

namespace sis {

absl::StatusOr<AnswersInSegment> AnswersInSegment::Parse(const v1::SegmentRange& range,
                                                         const ReceivedArrays& arrays,
                                                         std::span<const uint64_t> sizes) {
  if (arrays.segment() == nullptr) {
    return absl::InvalidArgumentError("answers: set, but segment is not");
  }
  const SegmentRange whole{range.offset(), range.bytes()};
  if (whole.offset % kAlignment != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("answers.offset: ", whole.offset, ", not a multiple of ", kAlignment));
  }
  if (absl::Status status = whole.Check(arrays.segment()->size()); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("answers: ", status.message()));
  }
  std::vector<SegmentRange> parts;
  uint64_t needed = 0;
  for (const uint64_t size : sizes) {
    needed = (needed + kAlignment - 1) / kAlignment * kAlignment;
    parts.push_back({whole.offset + needed, size});
    needed += size;
  }
  if (needed > whole.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("answers.bytes: ", whole.size, ", but ", needed, " are needed"));
  }
  return AnswersInSegment(arrays.segment(), whole, std::move(parts));
}

absl::Status AnswersInSegment::CheckDisjoint(const google::protobuf::Message& request,
                                             const ReceivedArrays& arrays) const {
  return arrays.ForEachPart(
      request, [this](const std::string& path, const SegmentRange& array) -> absl::Status {
        if (array.size == 0 || range_.size == 0 || array.offset + array.size <= range_.offset ||
            range_.offset + range_.size <= array.offset) {
          return absl::OkStatus();
        }
        return absl::InvalidArgumentError(absl::StrCat(path, ": overlaps the answers"));
      });
}

void AnswersInSegment::Write(size_t index, uint64_t offset,
                             std::span<const std::byte> bytes) const {
  if (bytes.empty()) return;
  assert(offset + bytes.size() <= parts_[index].size);
  segment_->Write(parts_[index].offset + offset, bytes.size(), bytes.data());
}

void AnswersInSegment::MoveUp(size_t index, uint64_t offset, uint64_t size, uint64_t to) const {
  assert(to <= offset && offset + size <= parts_[index].size);
  std::array<std::byte, 4096> piece;
  for (uint64_t done = 0; done < size;) {
    const size_t bytes = std::min<uint64_t>(size - done, piece.size());
    segment_->Read(parts_[index].offset + offset + done, bytes, piece.data());
    Write(index, to + done, std::span(piece).first(bytes));
    done += bytes;
  }
}

void AnswersInSegment::Move(google::protobuf::Message& response) const {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& reflection = *response.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(response, &fields);
  size_t index = 0;
  for (const FieldDescriptor* field : fields) {
    if (field->type() != FieldDescriptor::TYPE_BYTES) continue;
    std::string scratch;
    const std::string& array = reflection.GetStringReference(response, field, &scratch);
    Write(index, 0, std::as_bytes(std::span(array)));
    reflection.SetString(&response, field, parts_[index].ToBytes());
    ++index;
  }
}

}  // namespace sis
